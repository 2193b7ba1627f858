"""The pages: their examples run, their reference written from the code, their site built.

    python tools/docs.py examples                 # run the examples of all pages; exit code 1 if one is not as shown
    python tools/docs.py examples --write PAGE... # and write what is printed into the page
    python tools/docs.py reference                # write simdist/docs/reference
    python tools/docs.py site OUT                 # build the site with Sphinx (pip install -e '.[docs]')

How a page says what is a file, a command or an output: tools/_page_examples.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simdist.docs import pages
from tools._page_examples import run_page

__all__ = ["ROOT", "examples", "main", "page_files"]

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the command line names; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("examples", help="run the examples")
    running.add_argument("pages", nargs="*", help="parts of topics, or README; default: all")
    running.add_argument("--write", action="store_true", help="write what is printed into the pages")
    running.add_argument("--real", action="store_true", help="run what wants real processes")
    written = commands.add_parser("reference", help="write the reference")
    written.add_argument("--check", action="store_true", help="change nothing; exit code 1 if something would change")
    site = commands.add_parser("site", help="build the site")
    site.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "examples":
        return examples(options.pages, write=options.write, real=options.real)
    if options.command == "reference":
        from tools._reference import write_reference

        return write_reference(check=options.check)
    from tools._site import build_site

    return build_site(options.out)


def page_files() -> dict[str, Path]:
    """Return every page's file by its topic, and the README's."""
    return {"README": ROOT / "README.md"} | {page.topic: page.file for page in pages()}


def examples(wanted: list[str], *, write: bool, real: bool) -> int:
    """Run the examples of the pages that have one of `wanted` in their topic; returns the exit code."""
    from tests.warm import Interpreters

    failed, warm = False, Interpreters()
    for topic, file in page_files().items():
        if wanted and not any(part in topic for part in wanted):
            continue
        text = file.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            page = run_page(text, Path(folder).resolve(), warm.run, real=real)
        for problem in page.problems:
            print(f"--- {topic}\n{problem}")
        print(f"{topic}: {page.ran} ran, {len(page.problems)} not as shown")
        failed = failed or bool(page.problems)
        if write and page.text != text:
            file.write_text(page.text, encoding="utf-8")
    warm.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
