"""JUnit XML can be read, whatever the text of a finding is."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from simdist.cli._junit import write_junit


def test_what_xml_cannot_hold_is_written_as_an_escape(tmp_path: Path) -> None:
    path = tmp_path / "found.xml"

    write_junit(str(path), "fuzz", "pro\x00gram", [("a <\x1b> & \ud800", ("first\x0b", 'second "'))], 1.5)

    (suite,) = ElementTree.parse(path).getroot()
    (case,) = suite
    assert suite.get("time") == "1.500"
    assert (case.get("classname"), case.get("name")) == ("pro\\x00gram", "a <\\x1b> & \\ud800")
    assert case[0].text == 'a <\\x1b> & \\ud800\nfirst\\x0b\nsecond "'


def test_each_finding_is_a_test_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "found.xml"

    write_junit(str(path), "sweep", "program", [("one", ()), ("two", ("more",))], 0)

    (suite,) = ElementTree.parse(path).getroot()
    assert [(case.get("name"), case[0].tag) for case in suite] == [("one", "failure"), ("two", "failure")]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "2", "0")
