"""What simdist knows of torch's inside."""
