"""The output files of commands: problems are reported before anything runs, and no file is left half done."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

from simdist.cli._console import say
from simdist.values import brief, plain, shortened

__all__ = ["output_problems", "reported", "shown_path", "write_bytes", "write_files", "write_text"]

_LONGEST = 200  # letters of a path in a message


def shown_path(path: str) -> str:
    """Return a path for a message: without control characters, and shortened if it is very long."""
    return shortened(plain(path, ""), _LONGEST)


def output_problems(
    files: Mapping[str, str | None], *, folders: Mapping[str, str | None] | None = None, inputs: Sequence[str] = ()
) -> list[str]:
    """Return why outputs can't be written, found by writing there; new files and folders are removed again.

    `files` and `folders` are paths by option. Two outputs in one place are a problem, too, and so is an output in the
    place of an input.
    """
    wanted = {option: path for option, path in files.items() if path is not None}
    wanted_folders = {option: path for option, path in (folders or {}).items() if path is not None}
    lines = []
    for option, path in wanted_folders.items():
        try:
            if os.path.lexists(path) and not Path(path).is_dir():
                lines.append(f"{option} {shown_path(path)}: is a file; expected a folder")
            elif "\0" in path:
                lines.append(f"{option} {shown_path(path)}: cannot be written: the path has a NUL character")
            else:
                _try_to_fill(path)
        except (OSError, ValueError) as error:
            lines.append(f"{option} {shown_path(path)}: cannot be written: {_reason(error)}")
    for option, path in wanted.items():
        try:
            _try_to_open(path)
        except (OSError, ValueError) as error:
            lines.append(f"{option} {shown_path(path)}: cannot be written: {_reason(error)}")
    places: dict[object, list[str]] = {}
    for option, path in {**wanted, **wanted_folders}.items():
        place = _place_of(path)
        if place is not None:
            places.setdefault(place, []).append(option)
    lines += [f"{' and '.join(options)}: two outputs in one file" for options in places.values() if len(options) > 1]
    return lines + [
        f"{option}: {shown_path(path)} is what is read; expected another file"
        for path in inputs
        for option in places.get(_place_of(path), ())
    ]


def write_text(path: str, write: Callable[[TextIO], object]) -> None:
    """Write a file with the output of `write`; the old file stays if anything goes wrong."""
    stream = io.StringIO(newline="\n")
    write(stream)
    write_bytes(path, stream.getvalue().encode("utf-8", "backslashreplace"))


def write_files(folder: str | None, write: Callable[[Path], Iterable[Path]]) -> list[Path]:
    """Return the files that `write` makes in a folder, if there is one; exit code 2 if one can't be written."""
    if folder is None:
        return []
    with reported(folder):
        return list(write(Path(folder)))


def write_bytes(path: str, content: bytes) -> None:
    """Write a file, or exit with code 2 and keep the old file."""
    with reported(path):
        target = Path(path).resolve()  # a link stays a link
        mode = _mode_of(target)
        if mode is not None and not stat.S_ISREG(mode):  # /dev/stdout, a pipe
            target.write_bytes(content)
            return
        try:
            handle, name = tempfile.mkstemp(prefix=".simdist-", dir=target.parent)
        except PermissionError:  # the file is writable, its folder is not
            target.write_bytes(content)
            return
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            Path(name).chmod(stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
            Path(name).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise


@contextmanager
def reported(path: str) -> Iterator[None]:
    """Report that the file can't be written, and exit with code 2."""
    try:
        yield
    except OSError as error:  # it was writable before the run: the disk is full, or the folder is gone
        say(f"{shown_path(path)}: cannot be written: {_reason(error)}", err=True)
        raise click.exceptions.Exit(2) from None


def _try_to_open(path: str) -> None:
    mode = _mode_of(Path(path))
    if mode is not None and stat.S_ISFIFO(mode):  # opening it waits for a reader
        return
    with Path(path).open("ab"):
        pass
    if mode is None and not Path(path).is_symlink():
        Path(path).unlink()


def _try_to_fill(path: str) -> None:
    folder = Path(path)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()


def _place_of(path: str) -> object:
    """Identify a path's file; None for one that any number of outputs may share, as /dev/null."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        try:
            return str(Path(path).resolve())
        except (OSError, ValueError, RuntimeError):
            return None
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        return found.st_dev, found.st_ino
    return None


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or brief(str(error)).strip("'\"")
