"""What simdist knows of torch's inside: the versions that it was tried on."""

from simdist.inside._versions import TRIED, warn_of_newer

__all__ = ["TRIED", "warn_of_newer"]
