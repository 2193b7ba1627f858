"""The judge of races: files, keys of stores and device memory that several ranks or streams use in no order."""

from simdist.judges.races._races import Races

__all__ = ["Races"]
