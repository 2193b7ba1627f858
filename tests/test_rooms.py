"""No folder of simdist holds more modules than a reader can keep in mind, and rooms import in one direction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import simdist
from tests.sources import source

HOME = Path(str(simdist.__file__)).parent
MOST = 25


def test_no_folder_has_more_than_25_modules() -> None:
    sizes = {folder.relative_to(HOME).as_posix(): len(list(folder.glob("*.py"))) for folder in folders()}

    assert {name: size for name, size in sizes.items() if size > MOST} == {}


def folders() -> list[Path]:
    return sorted({path.parent for path in HOME.rglob("*.py")})


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """Each file of the folder, with each module that it imports, in functions too."""
    for path in sorted(folder.glob("*.py")):
        for each in source(path).imports:
            if not each.typing:
                yield path.stem, each.module
                yield path.stem, each.full


@pytest.mark.parametrize(
    ("house", "room", "doors"),
    [
        ("faults", "faults.kinds", {"__init__", "_kinds"}),
        ("c10d/surface", "c10d.surface.state", set()),
        ("hardware", "hardware.compare", {"__init__"}),
    ],
)
def test_only_the_doors_of_a_house_know_the_room_behind_them(house: str, room: str, doors: set[str]) -> None:
    name = f"simdist.{room}"

    wrong = sorted({file for file, module in imported(HOME / house) if f"{module}.".startswith(f"{name}.")} - doors)

    assert wrong == []
