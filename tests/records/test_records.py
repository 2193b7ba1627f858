from __future__ import annotations

import dataclasses
import itertools
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simdist
from simdist import records, trace
from simdist.records import Record, fields_of, kinds, specs, unpacked
from simdist.trace import event_of
from simdist.values import JSON, Spec
from tests.sources import source

CLASSES = [made for found in kinds().values() for made in found]
SAMPLES = {
    "int": st.integers(0, 2**40),
    "int | None": st.none() | st.integers(-(2**31), 2**31),
    "str": st.text(max_size=5),
    "bool": st.booleans(),
    "tuple[int, ...]": st.lists(st.integers(0, 9), max_size=3).map(tuple),
    "tuple[str, ...]": st.lists(st.text(max_size=3), max_size=3).map(tuple),
    "Any": st.integers(0, 9),
}

few = settings(max_examples=15)  # for each class


def samples(made: type[Record]) -> st.SearchStrategy[Record]:
    """Draw records of a class, with values of its fields' types."""
    kinds_of = {}
    for each in dataclasses.fields(made):
        text = str(each.type)
        kinds_of[each.name] = text.removeprefix("Annotated[").rsplit(", _", 1)[0].rsplit(", Duration", 1)[0]
        kinds_of[each.name] = kinds_of[each.name].rsplit(", Maybe", 1)[0].rsplit(", Truth", 1)[0]
        kinds_of[each.name] = kinds_of[each.name].rsplit(", ListOf", 1)[0]
    return st.builds(made, **{name: SAMPLES[text] for name, text in kinds_of.items()})


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
def test_every_field_says_what_it_has_to_be(made: type[Record]) -> None:
    fields = fields_of(made)

    assert ["time_ns", "rank", *fields] == [each.name for each in dataclasses.fields(made)]
    assert all(isinstance(spec, Spec) for spec in fields.values())


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
def test_a_name_means_the_same_in_every_kind(made: type[Record]) -> None:
    assert {name: spec for name, spec in fields_of(made).items() if spec != specs()[name]} == {}


@pytest.mark.parametrize("kind", kinds())
def test_records_of_a_kind_differ_at_most_in_fields_at_the_end(kind: str) -> None:
    names = [list(fields_of(made)) for made in kinds()[kind]]

    assert all(more[: len(fewer)] == fewer and more != fewer for fewer, more in itertools.pairwise(names))


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
@few
@given(data=st.data())
def test_a_record_is_packed_and_unpacked_without_loss(made: type[Record], data: st.DataObject) -> None:
    record = data.draw(samples(made))

    packed = record.packed

    assert packed[:3] == (record.time_ns, made.kind, record.rank)
    assert type(packed) is tuple
    assert unpacked(packed) == record
    assert type(unpacked(packed)) is made
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
@few
@given(data=st.data())
def test_the_function_of_a_class_makes_its_records_packed(made: type[Record], data: st.DataObject) -> None:
    record = data.draw(samples(made))
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in made.__name__)[1:]

    packed = getattr(records, name)(**{each.name: getattr(record, each.name) for each in dataclasses.fields(made)})

    assert packed == record.packed


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
@few
@given(data=st.data())
def test_what_a_record_holds_is_what_files_may_hold(made: type[Record], data: st.DataObject) -> None:
    record = data.draw(samples(made))

    event = event_of(record.packed)

    assert list(event.data) == list(fields_of(made))
    for name, value in event.data.items():
        checked = specs()[name].check(value, JSON)
        assert (list(checked) if isinstance(checked, tuple) else checked) == value


@pytest.mark.parametrize("kind", kinds())
def test_the_table_of_the_trace_package_has_every_field(kind: str) -> None:
    """The table describes to users the fields of `Event.data`."""
    rows = [line.split("|")[1:3] for line in str(trace.__doc__).splitlines() if line.startswith("| ")]
    (reported,) = [words for names, words in rows if kind in names.strip().split(", ")]

    assert [name for name in fields_of(kinds()[kind][-1]) if name not in re.findall(r"\w+", reported)] == []


def test_what_is_no_record_is_not_unpacked() -> None:
    with pytest.raises(KeyError):
        unpacked((0, "sleep", 0))
    with pytest.raises(KeyError):
        unpacked((0, "nap", 0, 5))


def test_no_layer_names_a_kind_of_record_where_it_makes_one() -> None:
    """Records for the bus come from the functions of this package, whose fields have names."""
    makers = {name for name in records.__all__ if name.islower()}
    found, around = set(), set()
    for path in Path(str(simdist.__file__)).parent.rglob("*.py"):
        for called, line, argument in source(path).calls:
            if called.endswith("events.add"):
                around.add(f"{path.name}:{line}")
            if called.split(".")[-2:] == ["bus", "record"]:
                assert argument in makers, f"{path.name}:{line}"
                found.add(argument)

    assert found == {name for name in makers if not name.startswith("flight_")} - {
        "fields_of",
        "kinds",
        "specs",
        "unpacked",
    }
    assert around == set()  # no listener gets a record that goes only to the log
