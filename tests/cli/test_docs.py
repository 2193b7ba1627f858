"""`simdist docs` lists, shows and finds pages."""

from __future__ import annotations

import re
from itertools import groupby

from click.testing import CliRunner, Result

from simdist.cli._main import main
from simdist.docs import find, pages, search

FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def docs(*words: str) -> Result:
    return CliRunner().invoke(main, ["docs", *words])


def test_every_page_is_listed_with_its_title() -> None:
    listed = docs()

    assert listed.exit_code == 0
    assert [page.topic for page in pages() if page.title.split()[0] not in listed.output] == []
    assert [page.topic for page in pages() if page.topic.rpartition("/")[2] not in listed.output] == []


def test_a_page_of_each_kind_is_shown() -> None:
    for _, group in groupby(pages(), key=lambda page: page.kind):
        page = next(group)
        shown = docs(page.topic)

        assert docs("--plain", page.topic).output == page.text
        assert shown.exit_code == 0
        assert page.title in shown.output


def test_a_page_is_found_by_the_beginning_of_its_name() -> None:
    assert [page.topic for page in find("inject")] == ["how-to/inject-a-fault"]
    assert [page.topic for page in find("glossary.md")] == ["glossary"]
    assert "Inject a fault" in docs("inject", "a", "fault").output


def test_a_kind_is_a_list_of_its_pages() -> None:
    listed = docs("tutorials")

    assert listed.exit_code == 0
    assert "first-test" in listed.output
    assert "glossary" not in listed.output


def test_words_that_name_no_page_are_searched_for() -> None:
    found = docs("who waits for whom")

    assert found.exit_code == 0
    assert "how-to/read-a-deadlock-report" in found.output


def test_a_search_finds_lines_with_all_words_in_any_case() -> None:
    hits = list(search("BATON thread"))

    assert any(hit.page.topic == "explanation/how-it-works" for hit in hits)
    assert docs("--search", "BATON").exit_code == 0


def test_a_search_finds_words_by_how_they_begin() -> None:
    lines = [hit.line.lower() for hit in search("all")]

    assert any("all_reduce" in line for line in lines)
    assert [line for line in lines if not re.search(r"(?<![a-z0-9])all", line)] == []


def test_a_search_for_words_that_stand_together_finds_nothing_else() -> None:
    lines = [hit.line.lower() for hit in search("virtual time")]

    assert lines
    assert [line for line in lines if "virtual time" not in line] == []


def test_lines_of_code_stay_whole() -> None:
    longest = max(
        (line for page in pages() for block in FENCED.findall(page.text) for line in block.splitlines()), key=len
    )
    (page,) = [page for page in pages() if longest in page.text][:1]
    assert len(longest) > 96

    assert longest.strip() in docs(page.topic).output


def test_a_search_without_a_hit_says_so() -> None:
    found = docs("--search", "xyzzy plugh")

    assert found.exit_code == 1
    assert "no page contains" in found.output


def test_a_page_that_is_not_there_is_refused_with_a_guess() -> None:
    refused = docs("glosary")

    assert refused.exit_code == 2
    assert "did you mean glossary?" in refused.output
    assert docs("xyzzyplugh").exit_code == 2
