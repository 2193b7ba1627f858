"""What a value has to be, defined once for scenario files, Python arguments, markers and options; and how to report it.

A `Spec` takes a value and returns it as plain data, or raises `Unfit` with a finding for each thing that is wrong.
The same spec works in two dialects: in a file a duration is a text such as "3ms" and a truth is `true`, in Python they
are nanoseconds and `True`. The specs of a fault are at the fields of its class, those of a world in
`simdist.settings`, those of a cluster next to `build`.

Open `_specs.py` first. `_units.py` reads durations and bandwidths, `_words.py` has the wordings that messages share,
`_ranks.py` writes ranks, `_plain.py` makes any text safe to print, `_shown.py` shows reports in notebooks, `_chance.py`
makes the first states of a rank's random generators. Nothing here imports anything but the standard library.
"""

from simdist.values._chance import GENERATOR_WORDS, generator_words
from simdist.values._json import Json
from simdist.values._plain import awkward_character, escaped, plain, repr_of, text_of
from simdist.values._ranks import number_text, program_lines, rank_text, without_source
from simdist.values._shown import Shown
from simdist.values._specs import (
    FILE,
    JSON,
    PYTHON,
    WORLD_SIZE,
    Bandwidth,
    Dialect,
    Duration,
    Either,
    Environment,
    Finding,
    Function,
    Instance,
    ListOf,
    Maybe,
    Moment,
    Number,
    OneOf,
    Size,
    Spec,
    TableOf,
    Text,
    Truth,
    Unfit,
    Whole,
    findings_of,
    items_of,
    settle_fields,
    specs_of,
)
from simdist.values._units import LONGEST_NS, format_duration, parse_bandwidth, parse_duration, parse_size
from simdist.values._words import brief, found, guess, guess_or_list, place, shortened, shown

__all__ = [
    "FILE",
    "GENERATOR_WORDS",
    "JSON",
    "LONGEST_NS",
    "PYTHON",
    "WORLD_SIZE",
    "Bandwidth",
    "Dialect",
    "Duration",
    "Either",
    "Environment",
    "Finding",
    "Function",
    "Instance",
    "Json",
    "ListOf",
    "Maybe",
    "Moment",
    "Number",
    "OneOf",
    "Shown",
    "Size",
    "Spec",
    "TableOf",
    "Text",
    "Truth",
    "Unfit",
    "Whole",
    "awkward_character",
    "brief",
    "escaped",
    "findings_of",
    "format_duration",
    "found",
    "generator_words",
    "guess",
    "guess_or_list",
    "items_of",
    "number_text",
    "parse_bandwidth",
    "parse_duration",
    "parse_size",
    "place",
    "plain",
    "program_lines",
    "rank_text",
    "repr_of",
    "settle_fields",
    "shortened",
    "shown",
    "specs_of",
    "text_of",
    "without_source",
]
