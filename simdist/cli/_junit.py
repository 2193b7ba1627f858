"""JUnit XML, which CI systems show as tests: a failing test for each finding, or one that passes."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

from simdist.cli._outputs import write_text
from simdist.values import plain

__all__ = ["write_junit"]


def write_junit(
    path: str, command: str, program: str, findings: Iterable[tuple[str, tuple[str, ...]]], seconds: float
) -> None:
    """Write the findings of `command` in `program`: each with its title and further lines.

    A case has the program as its class and the finding as its name, so that the same finding has the same name in each
    run. Without findings, one case with the program's name passes.
    """
    found = [(plain(what), plain("\n".join(lines))) for what, lines in findings]
    counts = {
        "name": f"simdist {command}",
        "tests": str(len(found) or 1),
        "failures": str(len(found)),
        "errors": "0",
        "time": f"{seconds:.3f}",
    }
    whole = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(whole, "testsuite", counts)
    for what, text in found:
        case = ElementTree.SubElement(suite, "testcase", classname=plain(program), name=what)
        ElementTree.SubElement(case, "failure", message=what).text = f"{what}\n{text}"
    if not found:
        ElementTree.SubElement(suite, "testcase", classname=plain(program), name=plain(program))
    ElementTree.indent(whole)
    text = ElementTree.tostring(whole, encoding="unicode")
    write_text(path, lambda stream: stream.write(f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'))
