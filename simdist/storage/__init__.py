"""A host's disk: what processes see of it, and what is left of that when the host loses power.

A plain state machine: callers report what was done (`Disk.write`, `Disk.rename`, ...), and it returns what a crash may
leave (`Disk.outcomes`, the most suspicious first; `Disk.drawn`, one of them). It opens no file, knows no process and
waits for nothing; `simdist.files` connects it with the functions that ranks call.

**A process crash** keeps everything that a call has returned for, in order. A write under way may have happened in
part. The content of the process's own buffers is lost.

**A host crash** keeps what was synced. Of the rest it keeps what follows from the profile, and within that anything:

| what was done | ext4 (data=ordered) | xfs | btrfs | posix, the least | nfs |
|---|---|---|---|---|---|
| create, mkdir, link, unlink, rename | a prefix of the journal | = ext4 | = ext4, or any (5) | each or not | kept |
| rename in a folder | both names or neither | = ext4 | = ext4 | = ext4 | kept |
| rename between folders | both names or neither | = ext4 | = ext4 | in both, one or none | kept |
| truncate, `O_TRUNC` | in the journal, too | = ext4 | = ext4, or cut (6) | old or new size | kept |
| write within the durable size | each block old or new | = ext4 | = ext4 | = ext4 | = ext4 |
| write beyond it: append, new file | old to new size, zeros or bytes | bytes only | = xfs | = ext4 | = xfs |
| the same if it replaced another (1) | new size, zeros or bytes | as above | = xfs | as above | kept |
| fsync of a file | bytes, the journal so far (2) | = ext4 | bytes, its names (3) | bytes | bytes |
| fdatasync | likewise (4) | = ext4 | bytes, its names (3) | bytes | bytes |
| fsync of a folder | the journal so far (2) | = ext4 | names in it (3) | names in it | - |
| close | nothing | nothing | nothing | nothing | bytes |
| sync | everything | everything | everything | everything | everything |

(1) By a rename over it, or because it was emptied, written and closed: ext4 allocates space for it then, if it had
none. Space that `posix_fallocate` or a sync has allocated is enough for bytes in the same blocks. (2) Up to the last
entry about what is synced; all of it if a file has grown. (3) And the folders that lead there. (4) Only entries of new
files and sizes count: a rename or a link of the file is not waited for. (5) Once anything is synced there is a log, in
which each later or earlier change of a name may be without the others; a replaced file is never gone before its
replacement is there, if the new file was synced. (6) A file that was emptied and written anew may have its new size, if
that is smaller, and its old bytes.

**What other hosts see** of a disk that several share: with any profile but `nfs` everything at once. With `nfs`:

| what a host does | what it sees itself | what another host sees |
|---|---|---|
| writes to a file that is open | at once | the server's bytes, if it opens the file to read |
| syncs or closes it | at once | the new bytes, if it opens the file after that |
| makes, links or renames something | at once | at once; `names_late_ns` after it has looked in vain |
| removes, or replaces by a rename | at once | at once |
| the same, with the file open on the host (7) | it is `.nfs...` until the last one closes it | = |
| dies with such a file | it stays | = |

Reading the folder counts as having looked in vain for everything else. (7) For writing, or by Python's `open`. C code
that opens a file by its path sees the newest content, and an entry of `os.scandir` shows the newest size. If a file is
gone that another host has open (ESTALE), that is an `io_error`.

A block has 4096 bytes, in `posix` 512, and is written whole. Data that a host writes back on its own in time is one of
the outcomes, so that no clock is needed. `nfs` is a client's host that crashes, with a server that does not. In these
terms O_DIRECT and stores to a mapping are writes, and `msync` is an fdatasync. Not modelled: a drive that lies about
flushes, blocks of other files that show up, access times, extended attributes, quotas.

Measured for ext4, XFS and btrfs on Linux 6.18, by cutting the power of mounted file systems; the rest comes from their
documentation and is wider than what was measured: an outcome that is allowed here may be rare or need bad luck.

Open `_disk.py` first; `_profile.py` has the rules by name, `_names.py` which names are left, `_inode.py` which bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simdist._lazy import lazily
from simdist.storage._mount import Mount
from simdist.storage._profile import PROFILES, Profile

if TYPE_CHECKING:
    from simdist.storage._content import Content
    from simdist.storage._disk import Disk, Image
    from simdist.storage._inode import Draw, FileState, Inode, Range

__all__ = ["PROFILES", "Content", "Disk", "Draw", "FileState", "Image", "Inode", "Mount", "Profile", "Range"]

# Loaded on first use: a run without a disk needs none of it.
_HOMES = {
    "Content": "_content",
    "Disk": "_disk",
    "Draw": "_inode",
    "FileState": "_inode",
    "Image": "_disk",
    "Inode": "_inode",
    "Range": "_inode",
}

__getattr__ = lazily(__name__, _HOMES)
