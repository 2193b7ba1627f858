"""Files of ranks: what programs call, and the simulated disk that they meet there.

`simdist.storage` knows what a disk keeps; this connects it with a real folder and with what code on a rank calls:
`open`, `os.*` and all that rests on them (pathlib, shutil, tempfile, zipfile), and `torch.save`. C code meets real
files. What it changes there can't be announced before it happens; it is found when the file is next looked at (when it
is synced, renamed, opened, closed, or when power is lost), becomes an effect "unseen", and counts as written then.

Nothing of this is installed in a world without a disk, and in one with a disk paths elsewhere stay as they are.

Open `_mounted.py` first: how an effect goes by. `_by_path.py`, `_by_descriptor.py` and `_listings.py` are the functions
of `os`, `_opening.py` is `open`, `_raw.py` what is below it, `_torch.py` `torch.save`, `_present.py` where a path
leads, `_watched.py` what was not seen, `_left.py` what a crash has left, `_looks.py` what nobody has looked at,
`_spill.py` where many bytes lie that are not synced, `_clients.py` what each host sees of a shared disk. Stores to a
mapping are noticed when it is flushed. Modification times are not simulated.
"""

from simdist.files._disks import Disks
from simdist.files._events import StorageCalled
from simdist.files._looks import Looks
from simdist.files._mount import mount
from simdist.files._mounted import MountedDisk
from simdist.files._present import present_disks
from simdist.files._rot import flip_bit

__all__ = ["Disks", "Looks", "MountedDisk", "StorageCalled", "flip_bit", "mount", "present_disks"]
