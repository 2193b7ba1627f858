"""What file systems guarantee, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The rules by which a disk decides what outlives its host.

    Names become durable `"in order"` (a journal: a crash keeps a prefix of the changes of names and sizes), `"apart"`
    (a prefix, and beyond it the changes about what was synced, and each other one separately once anything was synced),
    `"any"` (each separately, in no order) or `"at once"` (a server keeps them).
    """

    name: str
    names: Literal["in order", "apart", "any", "at once"]
    block_bytes: int = 4096  # written whole or not at all
    shows_zeros: bool = False  # a file may have grown before its new bytes are there
    allocates_early: bool = False  # a file that replaces another has its full size at once, though maybe not its bytes
    cuts_alone: bool = False  # a smaller size may be there without the later bytes
    close_syncs: bool = False  # closing a file waits for its bytes

    @property
    def sync_keeps_name(self) -> bool:
        """True if an fsync of a file makes its name durable, too."""
        return self.names != "any"

    @property
    def orders_sizes(self) -> bool:
        """True if truncations are in the same order as changes of names."""
        return self.names != "any"


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        each.name: each
        for each in (
            Profile(name="ext4", names="in order", shows_zeros=True, allocates_early=True),
            Profile(name="xfs", names="in order"),
            Profile(name="btrfs", names="apart", cuts_alone=True),
            Profile(name="posix", names="any", block_bytes=512, shows_zeros=True),
            Profile(name="nfs", names="at once", close_syncs=True),
        )
    }
)
"""The profiles by name: Linux's ext4 with default options (data=ordered), XFS, btrfs, POSIX's minimum, and NFS."""
