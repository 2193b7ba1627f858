"""Files of ranks: the functions that programs call, and the simulated disk under them.

`simdist.storage` knows what a disk keeps. This package connects it with a real folder and with the functions that a
rank calls: `open`, `os.*` and all that rests on them (pathlib, shutil, tempfile, zipfile), and `torch.save`. C code
uses the real files. Its changes cannot be announced before they happen. They are found when the file is next looked at
(when it is synced, renamed, opened, closed, or when power is lost), become an effect "unseen", and count as written
then. Where the system allows, the syncs of libraries that sync for themselves are noticed.

| how a file is made durable | seen as |
|---|---|
| `os.fsync`, `os.fdatasync`, by any descriptor of the file or folder: to read, to write, a copy | itself |
| a write to what is open with `O_SYNC`, `O_DSYNC`, or with `RWF_SYNC`, `RWF_DSYNC` | a write, then that sync (1) |
| `os.sync` | itself |
| `mmap.flush` | fdatasync of the file that is mapped (1) |
| `fsync`, `fdatasync`, `sync`, `syncfs`, `msync`, `O_DSYNC` of C code that links to the C library (2) | likewise |
| the same, looked up by `ctypes` on a rank | likewise |
| `sync_file_range` | nothing: it keeps neither names nor sizes |
| a library's own threads; system calls made by hand (3) | nothing |

(1) Of the whole file; Linux waits for the bytes that were written, or lie in the range. (2) On Linux, x86-64 and
aarch64, of libraries that can sync; not announced, so that no fault strikes within. (3) The report names files that
were written in this way.

None of this is installed in a world without a disk, and in one with a disk paths elsewhere stay as they are.

Open `_mounted.py` first: how an effect is processed. `_by_path.py`, `_by_descriptor.py` and `_listings.py` replace the
functions of `os`, `_opening.py` `open`, `_raw.py` the layer below it, `_torch.py` `torch.save`. `_present.py` finds
where a path leads, `_watched.py` finds unseen changes, `_by_c_code.py` has the system calls of libraries' C code,
`_left.py` what a crash has left, `_looks.py` the files at which no program has looked, `_spill.py` the place of many
bytes that are not synced, `_clients.py` the view of each host on a shared disk, `_old_times.py` the times of files that
a crash brings back. Stores to a mapping are noticed when it is flushed.
"""

from simdist.files._by_c_code import reaches_c_code
from simdist.files._disks import Disks
from simdist.files._events import StorageCalled
from simdist.files._looks import Looks
from simdist.files._mount import mount
from simdist.files._mounted import MountedDisk
from simdist.files._present import present_disks
from simdist.files._rot import flip_bit

__all__ = ["Disks", "Looks", "MountedDisk", "StorageCalled", "flip_bit", "mount", "present_disks", "reaches_c_code"]
