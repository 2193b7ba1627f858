"""The pages and the README: each example prints the text shown, each link has a target, nothing is missing."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import sys
from pathlib import Path

import pytest

from simdist.docs import FOLDER, KINDS, pages
from simdist.faults import KINDS as FAULT_KINDS
from simdist.faults import fields_of
from tests.builds import BUILT_FOR_CUDA, VERSION
from tests.warm import Interpreters
from tools import _meanings, _reference
from tools._page_examples import PageRun, blocks, run_page
from tools.docs import page_files

ROOT = Path(__file__).resolve().parents[1]
FILES = page_files()
WITH_EXAMPLES = sorted(
    topic for topic, file in FILES.items() if "```" in file.read_text() and "reference/" not in topic
)
REAL = sorted(topic for topic, file in FILES.items() if "<!-- real -->" in file.read_text())
TRIED_HERE = VERSION == (2, 13) and not BUILT_FOR_CUDA and sys.version_info[:2] == (3, 11)
ONLY_HERE = pytest.mark.skipif(
    not TRIED_HERE, reason="pages show texts and names of torch 2.13 for the CPU and Python 3.11"
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@ONLY_HERE
@pytest.mark.parametrize("topic", WITH_EXAMPLES)
def test_every_example_runs_and_prints_what_is_shown(topic: str, tmp_path: Path, interpreters: Interpreters) -> None:
    text = FILES[topic].read_text()

    ran = run_page(text, tmp_path, functools.partial(interpreters.run, checks=True))

    assert ran.problems == [], "run tools/docs.py examples, and look at what changed"
    assert ran.text == text


@pytest.mark.real
@pytest.mark.parametrize("topic", REAL)
def test_every_example_with_real_processes_runs(topic: str, tmp_path: Path) -> None:
    ran = run_page(FILES[topic].read_text(), tmp_path, real=True)

    assert ran.problems == []
    assert ran.ran > 0


def test_a_page_that_shows_something_else_is_noticed(tmp_path: Path, interpreters: Interpreters) -> None:
    page = "# T\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n\n```python\n1 / 0\n```\n"

    ran = run_page(page, tmp_path, interpreters.run)

    assert len(ran.problems) == 2
    assert "```text\n2\n```" in ran.text


def test_a_file_of_a_page_is_there_for_its_commands(tmp_path: Path, interpreters: Interpreters) -> None:
    file = "```python\n# said.py\nprint('a')\nprint('b')\nprint('c')\n```\n"
    page = f"{file}\n```console\n$ python said.py\na\n...\nc\n```\n"

    assert run_page(page, tmp_path, interpreters.run) == PageRun(page, ran=1)


def test_a_command_that_pages_do_not_have_is_a_problem(tmp_path: Path) -> None:
    page = "```console\n$ rm -r /\n```\n\n```sh\nwget x\n```\n\n```perl\n1\n```\n\n```console\n$ python -V\n...\n```\n"

    assert len(run_page(page, tmp_path).problems) == 4


def test_the_readme_is_short() -> None:
    assert len(FILES["README"].read_text().splitlines()) <= 150


def test_every_page_has_a_title_a_summary_and_a_kind() -> None:
    for page in pages():
        assert page.kind in KINDS
        assert page.text.startswith("# "), page.topic
        assert 20 < len(page.summary) < 400, page.topic


@pytest.mark.parametrize("topic", sorted(FILES))
def test_every_link_leads_somewhere(topic: str) -> None:
    file = FILES[topic]
    prose = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    for link in LINK.findall(prose):
        path, _, anchor = link.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), f"{topic}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text()), f"{topic}: {link}"


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_start_page_leads_to_all_pages_that_no_reference_leads_to() -> None:
    reached, left = set[Path](), [FOLDER / "index.md"]
    while left:
        file = left.pop()
        if file in reached or file.suffix != ".md":
            continue
        reached.add(file)
        if file == FOLDER / "index.md" or "reference" in file.parts or "how-to" in file.parts:
            left += [(file.parent / link.partition("#")[0]).resolve() for link in LINK.findall(file.read_text())]

    assert [page.topic for page in pages() if page.file not in reached] == []


def test_pages_name_no_place_of_a_machine() -> None:
    for topic, file in FILES.items():
        assert re.findall(r"(?<![\w.])/(?:home|root|work|Users|opt)/\S*", file.read_text()) == [], topic


def test_changes_are_at_most_a_screen_for_each_version() -> None:
    versions = re.split(r"^## ", (FOLDER / "changes.md").read_text(), flags=re.MULTILINE)[1:]

    assert versions[0].startswith("0.2.0")
    assert [version for version in versions if len(version.splitlines()) > 40] == []
    assert [line for version in versions for line in version.splitlines() if len(line) > 620] == []


def out_of_date(launch_help: str) -> str:
    """Return the pages of the reference that differ from the code; for a process in which tests replace no names."""
    vars(_reference)["_launch_help"] = lambda: launch_help
    with contextlib.redirect_stdout(io.StringIO()) as said:
        _reference.write_reference(check=True)
    return said.getvalue()


@ONLY_HERE
def test_the_reference_is_what_the_code_says(interpreters: Interpreters) -> None:
    words = [sys.executable, "-m", "simdist", "launch", "--help"]
    launch_help = interpreters.run(words, env=_reference._plain_environment()).stdout

    assert interpreters.call("1", out_of_date, launch_help) == "", "run tools/docs.py reference"


def test_every_key_and_every_field_has_its_meaning() -> None:
    keys = _reference.scenario_keys()

    assert {section: set(names) for section, names in keys.items()} == {
        section: set(names) for section, names in _meanings.KEYS.items()
    }
    assert {name for kind in FAULT_KINDS.values() for name in fields_of(kind)} <= set(_meanings.FIELDS)
    assert set(_meanings.REAL) == set(FAULT_KINDS)


@pytest.mark.parametrize("package", _reference.PACKAGES)
def test_every_public_name_has_its_entry(package: str) -> None:
    text = FILES[f"reference/{package.replace('.', '-')}"].read_text()

    assert [name for name, _ in _reference.public_names(package) if f"\n## {name}\n" not in text] == []


def test_every_variable_that_the_code_reads_is_named() -> None:
    said = FILES["reference/environment"].read_text()
    read = set[str]()
    for file in (ROOT / "simdist").rglob("*.py"):
        read |= set(re.findall(r"[\"'](?:SIMDIST|TORCH_NCCL|TORCH_FR)_([A-Z0-9_]+)[\"']", file.read_text()))

    assert sorted(name for name in read if name not in said) == []


def test_every_block_of_a_page_is_of_a_kind_that_is_looked_at() -> None:
    languages = {block.language for file in FILES.values() for block in blocks(file.read_text())}

    assert languages <= {"python", "py", "toml", "console", "text", "sh", "diff", "yaml"}


def test_the_house_is_the_one_that_is_drawn() -> None:
    drawn = FILES["explanation/how-it-works"].read_text().partition("```text\n")[2].partition("```")[0]
    rooms = re.findall(r"(?:^ {3}|  )([a-z]\w+) {2,}\w", drawn, re.MULTILINE)

    assert {"surface", "engine", "backends", "kernel", "cluster", "storage", "device"} <= set(rooms)
    assert [room for room in rooms if not any((ROOT / "simdist" / at / room).is_dir() for at in ("", "c10d"))] == []
