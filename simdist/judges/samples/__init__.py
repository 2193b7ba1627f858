"""The judge of samples: what the loaders of all ranks hand out in an epoch of training."""

from simdist.judges.samples._samples import Samples

__all__ = ["Samples"]
