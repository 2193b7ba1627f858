"""The examples of a page: which are files, which are commands, and whether they print what the page shows.

Every fenced block of a page is one of these:

- a block whose first line is a comment with a file name (`# train.py`, `# crash.toml`) is that file, in the page's own
  folder. A later block with the same name replaces it. A ```toml block that shows one of the repository's scenarios
  names it in its first line and must be equal to it: `# scenarios/straggler.toml`;
- ```python without a name is a program. It runs, and must print the ```text block after it, if there is one;
- ```console has commands behind `$ ` (simdist, pytest and python) and their output;
- ```text on its own, ```diff, ```yaml and ```py are not run;
- ```sh has commands for a person: an installation, torchrun, a cluster. Their first words are in PERSON.

A comment before a block changes that: `<!-- real -->` (real processes: only with `pytest --real`), `<!-- needs:
lightning -->` (only where these packages are installed).

In an output a line `...` stands for any lines, and real times are left out. Text that differs between machines is not
compared: digests, the last places of an accuracy, pytest's lines about the machine. On real processes times are not
compared either.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PERSON", "Block", "PageRun", "blocks", "run_page"]

ROOT = Path(__file__).resolve().parents[1]
Start = Callable[..., subprocess.CompletedProcess[str]]
PERSON = ("pip", "simdist", "pytest", "srun")
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w.+-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL
)
_DIRECTIVE = re.compile(r"<!-- (real|needs)(?:: ([^\n]*?))? -->\s*$")
_NAME = re.compile(r"# ([\w./-]+\.(?:py|toml|json|sh))\n")
# The interpreters of tests.warm have imported hypothesis already, which makes pytest warn.
_PYTEST = ["-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
_COMMANDS = {"simdist": ["-m", "simdist"], "pytest": _PYTEST, "python": []}
# Variables that make pytest and rich print other lines than on a reader's terminal: in CI pytest shortens nothing.
_NOT_A_READERS = ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS", "NO_COLOR")
_REAL_TIME = re.compile(r" in \d+\.\d+s\b(?= =+$|$)")  # printed by pytest
_INSTALLED = re.compile(r"[^\s\"']*/(site-packages/|python3\.\d+/)")
_LIKE = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "DIGEST"),
    (re.compile(r"accuracy(\W+)0\.\d+"), r"accuracy\g<1>0.9"),
    (re.compile(r"(?m)^(platform|rootdir|plugins|configfile|cachedir|Python)[: ].*\n?"), ""),
    (re.compile(r"={4,}"), "===="),
    (re.compile(r"(?m)[ \t]+$"), ""),
)
# Text that differs between runs on real processes: times, and the widths of columns that hold them.
_LIKE_REAL = ((re.compile(r"\d+(\.\d+)? (ns|us|ms|s)\b"), "TIME"), (re.compile(r"(?<=\S) {2,}"), "  "))


@dataclass(slots=True)
class Block:
    """A fenced block.

    Attributes:
        language: the word behind the fence.
        body: the lines between the fences.
        start: where the body begins in the page's text.
        directives: the comments before the block, with their texts.
    """

    language: str
    body: str
    start: int
    directives: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """The name of the file, if the block is one."""
        found = _NAME.match(self.body)
        return found[1] if found is not None and self.language not in ("console", "text") else None


def blocks(text: str) -> list[Block]:
    """Return all fenced blocks of a page, in order."""
    found = []
    for match in _BLOCK.finditer(text):
        block = Block(match["language"], match["body"], match.start("body"))
        before = text[: match.start()]
        while directive := _DIRECTIVE.search(before):
            block.directives[directive[1]] = directive[2] or ""
            before = before[: directive.start()].rstrip("\n") + "\n"
        found.append(block)
    return found


@dataclass(slots=True)
class PageRun:
    """The result of running a page's examples.

    Attributes:
        problems: the differences from the page, a paragraph each.
        text: the page with the output of this run.
        ran: how many commands and programs ran.
        left_out: why others did not run.
    """

    text: str
    problems: list[str] = field(default_factory=list)
    ran: int = 0
    left_out: list[str] = field(default_factory=list)


def run_page(text: str, folder: Path, start: Start = subprocess.run, *, real: bool = False) -> PageRun:
    """Run the examples of the page `text` in the empty `folder`.

    Args:
        text: the page.
        folder: where its files are written and its programs run.
        start: runs Python, as `subprocess.run` does.
        real: run only the examples that need real processes, with all files; else only the others.
    """
    page = PageRun(text)
    everything = blocks(text)
    edits: list[tuple[Block, str]] = []
    for index, block in enumerate(everything):
        following = everything[index + 1] if index + 1 < len(everything) else None
        output = (
            following
            if following is not None and following.language == "text" and _touch(text, block, following)
            else None
        )
        _one(page, block, output, folder, start, edits, real=real)
    for block, body in sorted(edits, key=lambda edit: -edit[0].start):
        page.text = page.text[: block.start] + body + page.text[block.start + len(block.body) :]
    return page


def _touch(text: str, block: Block, following: Block) -> bool:
    between = text[block.start + len(block.body) : following.start]
    return between.count("\n") <= 3 and not between.replace("```text", "").strip("`\n ")


def _one(
    page: PageRun,
    block: Block,
    output: Block | None,
    folder: Path,
    start: Start,
    edits: list[tuple[Block, str]],
    *,
    real: bool,
) -> None:
    if block.name is not None:
        _write(page, block, folder)
        return
    if block.language in ("text", "diff", "yaml", "py"):
        return
    if block.language == "sh":
        unknown = [
            line
            for line in block.body.splitlines()
            if line.strip() and not line.startswith(("#", " ")) and shlex.split(line)[0] not in PERSON
        ]
        page.problems.extend(f"not a command that pages show: {line}" for line in unknown)
        return
    missing = [each for each in re.split(r",\s*", block.directives.get("needs", "")) if each and not _is_there(each)]
    if missing:
        page.left_out.append(f"needs {', '.join(missing)}")
    elif ("real" in block.directives) != real:
        page.left_out.append("other arm")
    elif block.language == "console":
        _console(page, block, folder, start, edits)
    elif block.language == "python":
        _program(page, block, output, folder, start, edits)
    else:
        page.problems.append(f"a block of language {block.language!r}, which is none that pages have:\n{block.body}")


def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package.strip()) is not None


def _write(page: PageRun, block: Block, folder: Path) -> None:
    assert block.name is not None
    shipped = ROOT / block.name
    if block.name.startswith("scenarios/"):
        if shipped.read_text() != block.body.partition("\n")[2]:
            page.problems.append(f"{block.name} is not what the repository has")
        return
    file = folder / block.name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.body)


def _console(page: PageRun, block: Block, folder: Path, start: Start, edits: list[tuple[Block, str]]) -> None:
    now = []
    for command, shown in _commands(block.body):
        words = shlex.split(command)
        settings = {}
        while words and "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            settings[name] = value
        if not words or words[0] not in _COMMANDS:
            page.problems.append(f"not a command that pages run: {command}")
            return
        printed = _run(start, [*_COMMANDS[words[0]], *words[1:]], folder, settings)[1]
        page.ran += 1
        same = _same(shown, printed, *(_LIKE_REAL if "real" in block.directives else ()))
        now.append(f"$ {command}\n{shown if same else printed}")
        if shown.split() == ["..."]:
            page.problems.append(f"$ {command}\nshows nothing, so it could not fail")
        if not same:
            page.problems.append(f"$ {command}\nprints\n{printed}\nand the page says\n{shown}")
    body = "".join(now)
    if body != block.body:
        edits.append((block, body))


def _commands(body: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"(?m)^\$ ", body)[1:]:
        command, _, shown = part.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = f"{command}\n{more}"
        yield command, shown


def _program(
    page: PageRun, block: Block, output: Block | None, folder: Path, start: Start, edits: list[tuple[Block, str]]
) -> None:
    file = folder / "example.py"
    file.write_text(block.body)
    code, printed = _run(start, [str(file)], folder, {})
    page.ran += 1
    if code != 0:
        page.problems.append(f"the program ends with exit code {code}\n{block.body}\n{printed}")
    elif output is not None and not _same(output.body, printed):
        page.problems.append(f"the program\n{block.body}\nprints\n{printed}\nand the page says\n{output.body}")
        edits.append((output, printed))


def _run(start: Start, words: list[str], folder: Path, settings: dict[str, str]) -> tuple[int, str]:
    import os

    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in _NOT_A_READERS and not key.startswith(("PYTEST_", "COV_"))
    }
    environment |= {
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "88",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "1",
    } | settings
    done = start([sys.executable, *words], capture_output=True, text=True, cwd=folder, env=environment, check=False)
    text = (done.stdout + done.stderr).replace(f"{folder}/", "").replace(str(folder), ".")
    text = _INSTALLED.sub(r"\1", text.replace(f"{ROOT}/", ""))  # pages show no installation paths
    lines = [_REAL_TIME.sub("", line) for line in text.splitlines() if not line.startswith("real time")]
    return done.returncode, "".join(f"{line.rstrip()}\n" for line in lines)


def _same(shown: str, printed: str, *more: tuple[re.Pattern[str], str]) -> bool:
    for pattern, instead in (*_LIKE, *more):
        shown, printed = pattern.sub(instead, shown), pattern.sub(instead, printed)
    parts = re.split(r"(?m)^ *\.\.\.\n", shown if shown.endswith("\n") or not shown else f"{shown}\n")
    wanted = r"(?:[^\n]*\n)*?".join(re.escape(part) for part in parts)
    return re.fullmatch(wanted, printed) is not None
