"""What a simulated and a real run have in common: accounts, flight records, the parity report, calibration."""
