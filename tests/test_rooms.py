"""No folder of simdist has more modules than a reader can keep in mind, and rooms import in one direction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx
import pytest

import simdist
from tests.sources import Import, source

HOME = Path(str(simdist.__file__)).parent
TESTS = Path(__file__).parent
MOST = 25
LONGEST = 600


def test_no_folder_has_more_than_25_modules() -> None:
    sizes = {folder.relative_to(HOME).as_posix(): len(list(folder.glob("*.py"))) for folder in folders()}

    assert {name: size for name, size in sizes.items() if size > MOST} == {}


def test_no_file_has_more_than_600_lines() -> None:
    """Longer files are about several subjects."""
    files = [path for folder in (HOME, TESTS, TESTS.parent / "tools") for path in folder.rglob("*.py")]
    lines = {path.as_posix(): len(path.read_text().splitlines()) for path in files}

    assert len(lines) > 1000
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def test_the_top_level_holds_nothing_else() -> None:
    """What a program leaves in the folder where it is started is easily committed."""
    root = TESTS.parent
    made = {"build", "dist", *(path.name for path in root.glob("*.egg-info"))}
    there = {path.name for path in root.iterdir() if not path.name.startswith(".")}

    assert there - made == {"LICENSE", "README.md", "pyproject.toml", "scenarios", "simdist", "tests", "tools"}


def folders() -> list[Path]:
    return sorted({path.parent for path in HOME.rglob("*.py")})


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each file of the folder with each module that it imports, in functions too."""
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


def test_files_that_import_each_other_say_why() -> None:
    """One file of each circle gives the reason, and no circle is large.

    Imports in functions and for the type checker count, imports of packages do not.
    """
    files = {module_of(path): path for path in HOME.rglob("*.py")}
    graph = networkx.DiGraph(
        (name, found)
        for name, path in files.items()
        if path.name != "__init__.py"
        for each in source(path).imports
        if (found := defining(each, files)) is not None and found != name
    )

    circles = [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]

    assert [circle for circle in circles if len(circle) > 15] == []
    said = [[name for name in circle if "Circle of imports:" in files[name].read_text()] for circle in circles]
    assert [circle for circle, names in zip(circles, said, strict=True) if len(names) != 1] == []


def module_of(path: Path) -> str:
    """Return the name under which a file is imported."""
    return ".".join(path.relative_to(HOME.parent).with_suffix("").parts).removesuffix(".__init__")


def defining(found: Import, files: Mapping[str, Path]) -> str | None:
    """Return the file that defines an imported name, also if a package re-exports it; None if it is not simdist's."""
    while found.module in files and found.full not in files and files[found.module].name == "__init__.py":
        inner = next((each for each in source(files[found.module]).imports if each.as_name == found.name), None)
        if inner is None:
            break
        found = inner
    return found.full if found.full in files else found.module if found.module in files else None
