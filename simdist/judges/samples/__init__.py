"""The judge of samples: the samples that the loaders of all ranks return in an epoch of training."""

from simdist.judges.samples._samples import Samples

__all__ = ["Samples"]
