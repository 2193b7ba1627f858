"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

from tests.warm import Interpreters
from tools import readme

ROOT = Path(__file__).resolve().parents[1]


def test_the_scenario_is_the_one_that_ships() -> None:
    shown = re.findall(r"^```toml\n(.*?)^```$", readme.README.read_text(), re.MULTILINE | re.DOTALL)

    assert shown[0] == (ROOT / "scenarios" / "ddp_crash_resume.toml").read_text()


def test_every_output_is_what_is_printed_now(interpreters: Interpreters) -> None:
    shown = readme.README.read_text()

    printed = readme.rewritten(shown, interpreters.run)

    assert _comparable(printed) == _comparable(shown), "run tools/readme.py, and look at what changed"


def test_it_shows_commands_and_an_example() -> None:
    shown = readme.README.read_text()

    assert len(readme._COMMAND.findall(shown)) >= 2
    assert readme._EXAMPLE.search(shown) is not None


def test_the_examples_of_the_test_chapter_are_those_that_are_run() -> None:
    chapter = readme.README.read_text().partition("## In your tests")[2].partition("## Pictures")[0]
    run = (ROOT / "tests" / "testing" / "samples" / "guide.py").read_text()

    examples = re.findall(r"^```python\n(.*?)^```$", chapter, re.MULTILINE | re.DOTALL)

    assert len(examples) == 4
    assert [example for example in examples if example not in run] == []


def test_the_report_of_a_failure_is_one_that_is_made() -> None:
    made = (ROOT / "tests" / "testing" / "golden" / "assertion.txt").read_text()

    assert made[made.index("4 ranks, backend") :].rstrip() in readme.README.read_text()


def _comparable(text: str) -> str:
    # Matrix products differ in the last bit between kinds of processors, and the digest and the accuracy with them.
    return re.sub(r"accuracy 0\.\d+", "accuracy ...", re.sub(r"\b[0-9a-f]{32}\b", "digest", text))
