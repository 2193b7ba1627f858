"""Input that once caused a traceback, or a hang: it gets one message, exit code 2, no line of simdist's own code."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.test_bad_input import refused

Job = Callable[..., str]
Simdist = Callable[..., Result]
LONG = "9" * 5000


def problems(result: Result) -> list[str]:
    lines = refused(result)
    assert "simdist/" not in result.output.replace("simdist/cli", "simdist/")
    return [line.strip() for line in lines]


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str], str]:
    """A function that writes a scenario of two ranks for `mod:work`, where `mod` is the given source."""

    def module(source: str) -> str:
        (tmp_path / "mod.py").write_text(source)
        path = tmp_path / "scenario.toml"
        path.write_text('world_size = 2\n[workload]\ntarget = "mod:work"\n')
        return str(path)

    return module


@pytest.mark.parametrize("command", ["run", "validate"])
@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError('no text')\nraise Mute()\n",
            "importing 'mod' raised Mute: <no text: its __str__ raised RuntimeError> (mod.py, line 4)",
        ),
        (
            "import sys\nsys.modules[__name__] = 3\n",
            "the int in place of module 'mod' has no function 'work'",
        ),
        (
            "def __getattr__(name):\n    raise RuntimeError('ask not for ' + name)\n",
            "module 'mod' has no function 'work': its __getattr__ raised RuntimeError: ask not for work",
        ),
        (
            "class Odd:\n    def __call__(self): pass\n    @property\n    def __signature__(self): raise OSError\n"
            "def work(a={1: Odd}): pass\nclass Loud:\n    def __repr__(self): raise OSError\n"
            "def work(a, b=Loud()): pass\n",
            "missing a required argument: 'a'; the function takes (a, b)",
        ),
        ("async def work(): pass\n", "'mod:work' is async; a rank calls a plain function"),
        ("def work():\n    yield 1\n", "'mod:work' is a generator; a rank calls a plain function"),
    ],
)
def test_a_workload_that_raises_when_it_is_asked(
    module: Callable[[str], str], simdist: Simdist, source: str, text: str, command: str
) -> None:
    (head, problem) = problems(simdist(command, module(source)))

    assert head.endswith("scenario.toml: 1 problem")
    assert problem.partition(": ")[2] == text


def test_a_module_that_is_no_module_is_forgotten_after_it(module: Callable[[str], str], simdist: Simdist) -> None:
    file = module("import sys\nsys.modules[__name__] = 3\n")

    assert refused(simdist("validate", file)) == refused(simdist("validate", file))
    module("def work(): pass\n")
    assert simdist("validate", file).exit_code == 0


def test_a_rank_whose_exception_has_no_text_fails_as_any_other(module: Callable[[str], str], simdist: Simdist) -> None:
    file = module(
        "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\n    __repr__ = __str__\n"
        "def work():\n    raise Mute()\n"
    )
    out = Path(file).with_name("out.json")

    result = simdist("run", file, "--json", out)

    assert result.exit_code == 1
    assert "raised Mute: <no text: its __str__ raised RuntimeError>" in result.stdout
    assert "no text" in json.loads(out.read_text())["ranks"][0]["exception"]["message"]


def test_numbers_of_thousands_of_digits_in_a_file(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(f"world_size = 2\nseed = {LONG}\n")

    assert problems(simdist("run", tmp_path / "bad.toml"))[1] == (
        "line 2: not TOML: a number of more than 4,300 digits"
    )
    hexadecimal = job("total", f"[expect]\nrestarts = 0x{'f' * 5000}")
    assert simdist("validate", hexadecimal).exit_code in (0, 2)
    hexadecimal = job("total", workload=f"args = [0x{'f' * 5000}]")
    assert simdist("run", hexadecimal).exit_code == 1


def test_one_bad_file_does_not_keep_the_others_from_being_listed(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    job("total", name="good.toml")
    (tmp_path / "bad.toml").write_text(f"world_size = {LONG}")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "gone.toml").symlink_to(tmp_path / "nowhere")

    result = simdist("list", tmp_path)

    assert result.exit_code == 2
    assert ["good", "2", "gloo", "0", "a", "test"] in [line.split() for line in result.stdout.splitlines()]
    assert "a number of more than 4,300 digits" in result.stdout
    assert "Is a directory" in result.stdout
    assert "no such file" in result.stdout


@pytest.mark.parametrize("length", [300, 5000])
def test_names_that_are_too_long_for_a_file(job: Job, simdist: Simdist, tmp_path: Path, length: int) -> None:
    name = "a" * length
    path = tmp_path / "file.toml"
    for target in (name, ".".join(["a"] * length)):
        path.write_text(f'world_size = 2\n[workload]\ntarget = "{target}:work"\n')
        (_, problem) = problems(simdist("validate", path))
        assert problem.startswith("workload.target: ")
        assert len(problem) < 500
    path.write_text(f'world_size = 2\n[cluster]\ncalibration = "{name}"\n[workload]\ntarget = "job:total"\n')
    assert problems(simdist("validate", path))[1].endswith("cannot be read: File name too long")
    file = job("total")
    assert problems(simdist("run", file, "--json", tmp_path / name))[1].endswith("File name too long")
    assert problems(simdist("run", name))[1] == "cannot be read: File name too long"
    assert problems(simdist("show", name))[0].endswith("cannot be read: File name too long")
    assert len(problems(simdist("list", name))) == 1


@pytest.mark.parametrize(
    "size", [2**63 - 1, "1000000000000000000000000000000"], ids=["of 64 bits", "larger than any integer of C"]
)
def test_worlds_without_end(job: Job, simdist: Simdist, tmp_path: Path, size: object) -> None:
    text = f"{size} is too large; the most is 32768, for each rank is a thread of this process"

    assert problems(simdist("run", job("total"), "--set", f"world_size={size}"))[1] == f"--set world_size: {text}"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "FILE", "--seed", LONG], "expected a whole number, found the text '9999"),
        (["run", "FILE", "--seed", str(2**64)], "is too large; the most is 18446744073709551615"),
        (["run", "FILE", "--set", f"seed={LONG}"], "seed: expected a whole number, found the text '9999"),
        (["run", "FILE", "--set", f"faults[{LONG}].rank=1"], "faults: expected a list of tables"),
        (["run", "FILE", "--set", "a=1\nb"], "seed"),
        (["show", "TRACE", "--rank", LONG], "expected a rank such as 3, or a range such as 0-2"),
        (["show", "TRACE", "--from", LONG], "is no duration"),
        (["show", "TRACE", "--lines", LONG], "expected a whole number"),
        (["parity", "FILE", "--repeat", LONG], "expected a whole number"),
        (["parity", "FILE", "--timing-tolerance", "nan"], "expected a finite number"),
        (["parity", "FILE", "--time-scale", "inf"], "expected a finite number"),
        (["parity", "FILE", "--local-addr", "1.2.3"], "--local-addr: '1.2.3' is no address"),
        (["run", "FILE", "--real", "gloo", "--local-addr", "1.2.3"], "--local-addr: '1.2.3' is no address"),
        (["run", "FILE", "--real", "gloo", "--rdzv-endpoint", "a:99999"], "--rdzv-endpoint: 'a:99999' is no host:port"),
        (
            ["run", "FILE", "--real", "gloo", "--rdzv-backend", "c10"],
            "--rdzv-backend: unknown 'c10'; did you mean 'c10d'?",
        ),
        (["calibrate", "-o", "/none/x", "--ranks", "1000000"], "is too large"),
        (["calibrate", "-o", "/none/x"], "-o /none/x: cannot be written: No such file or directory"),
    ],
)
def test_options_out_of_this_world(job: Job, simdist: Simdist, tmp_path: Path, words: list[str], text: str) -> None:
    file, trace = job("total"), tmp_path / "trace.json"
    if "TRACE" in words:
        assert simdist("run", file, "--trace", trace).exit_code == 0
    if text == "seed":  # an override is one line
        result = simdist("run", file, *words[2:])
        assert result.exit_code == 2
        return

    result = simdist(*(file if word == "FILE" else trace if word == "TRACE" else word for word in words))

    lines = problems(result)
    assert text in "\n".join(lines)
    assert max(map(len, lines)) < 400


def event(**changes: object) -> str:
    record: dict[str, object] = {
        "time_ns": 5,
        "kind": "issue",
        "rank": 0,
        "data": {"op": "send", "group": "0", "seq": 0},
    }
    return json.dumps(record | changes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "line 1: nested too deep"),
        ('{"traceEvents":' + "[" * 100_000, "nested too deep"),
        (event(time_ns="x"), "line 1: time_ns: expected nanoseconds, a whole number, found the text 'x'"),
        (
            event(time_ns=2**63),
            "line 1: time_ns: 9223372036854775808 ns is longer than virtual time can be (292 years)",
        ),
        (event(time_ns=-1), "line 1: time_ns: -1 ns lies before the start"),
        (event(rank=1.5), "line 1: rank: expected a whole number, found the number 1.5"),
        (event(rank=None), "line 1: rank: expected a whole number, found null"),
        (event(kind=[]), "line 1: kind: expected a text, found a list"),
        (event(data=3), "line 1: data: expected a table, found the number 3"),
        (event(data={"shape": 3}), "line 1: data.shape: expected a list of sizes, found the number 3"),
        (event(data={"ranks": [0, "a"]}), "line 1: data.ranks[1]: expected a whole number, found the text 'a'"),
        (event(data={"peer": {}}), "line 1: data.peer: expected a whole number, found a table"),
        (event(data={"duration_ns": 10**30}), "line 1: data.duration_ns: 1000000000000000000000000000000 ns is longer"),
        (
            event(rank=0).replace('"rank": 0', f'"rank": {LONG}'),
            "line 1: not JSON that can be read: a number of thousands",
        ),
        ('{"traceEvents": 3}', "traceEvents: expected a list"),
        ('{"traceEvents": [3], "otherData": {"virtual_time_ns": 1, "seed": 0}}', "traceEvents[0]: expected a table"),
        (
            '{"traceEvents": [{"ph":"i","name":"x","cat":"c","pid":0,"tid":0,"ts":NaN,"args":{}}], '
            '"otherData": {"virtual_time_ns": 1, "seed": 0}}',
            "traceEvents[0].ts: expected a finite number, found the number nan; traceEvents[0]",
        ),
        (
            '{"traceEvents": [{"ph":"i","name":"x","cat":"c","pid":0,"tid":0,"ts":1,"args":{}}], '
            '"otherData": {"virtual_time_ns": 1e30, "seed": 0}}',
            "otherData.virtual_time_ns: expected nanoseconds, a whole number, found the number 1e+30",
        ),
    ],
)
def test_a_trace_of_wrong_types_is_reported_by_its_place(
    simdist: Simdist, tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(text)

    (line,) = problems(simdist("show", file))

    start = f"{file}: is not a trace of simdist ("
    assert line.startswith(start + problem.removesuffix("; traceEvents[0]"))


@pytest.mark.parametrize("time_us", ["1e308", "-1", "1" + "0" * 30])
def test_a_chrome_trace_with_times_out_of_this_world(simdist: Simdist, tmp_path: Path, time_us: str) -> None:
    file = tmp_path / "trace.json"
    mark = f'{{"ph":"i","name":"x","cat":"c","pid":0,"tid":0,"ts":{time_us},"args":{{}}}}'
    file.write_text(f'{{"traceEvents": [{mark}], "otherData": {{"virtual_time_ns": 1, "seed": 0}}}}')

    (line,) = problems(simdist("show", file))

    assert "µs is no virtual time: it is negative, or beyond 292 years" in line


def test_what_click_says_of_a_word_is_plain(simdist: Simdist) -> None:
    for words in (["list", "a", "b\x1b[31m"], ["run", "x", "--b\x1b[31m"], ["b\x1b[31m"], ["--b\x1b[31m"]):
        assert "\x1b" not in "\n".join(refused(simdist(*words)))


def test_a_message_without_end_does_not_fill_the_screen(module: Callable[[str], str], simdist: Simdist) -> None:
    result = simdist("run", module("def work():\n    raise OSError('x' * 100_000)\n"))

    assert result.exit_code == 1
    assert "x... (100018 letters)" in result.stdout
    assert len(result.stdout) < 20_000


def test_a_trace_may_end_just_before_292_years(simdist: Simdist, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "trace.jsonl", tmp_path / "picture.svg"
    file.write_text(f"{event()}\n{event(time_ns=2**63 - 1, kind='complete')}\n{event(kind='exit', data={})}\n")

    assert simdist("show", file).exit_code == 0
    assert simdist("show", file, "--timeline", picture).exit_code == 0
    xml.etree.ElementTree.parse(picture)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"x = {LONG}", "line 1: not TOML: a number of more than 4,300 digits"),
        ("x = " + "[" * 5000, "not TOML: nested too deep"),
        ("x = " + "[" * 70 + "]" * 70, "not TOML: nested too deep; 64 levels are the most"),
        (
            "world = 3",
            "no calibration: backend: missing; it has no default; world: expected a list, found the number 3",
        ),
        (
            'backend = "gloo"\n[[world]]\nranks = "2"\nlocal_latency = -1\n[[world]]\nranks = 2\n'
            'local_latency = "1us"\nlocal_bandwidth = "fast"\nreduction_slowdown = nan',
            "no calibration: world[0].ranks: expected a whole number, found the text '2'; world[0].local_latency: -1 "
            "is negative; a duration is not; world[0].local_bandwidth: missing; it has no default; world[1]."
            "local_bandwidth: 'fast' is no bandwidth; write '25Gbit/s', '1GB/s', '100MiB/s'; world[1]."
            "reduction_slowdown: expected a finite number, found the number nan",
        ),
        ('backend = "gloo"\nworld = []', "no calibration: world: is empty; there is an entry for each number of ranks"),
    ],
)
def test_a_calibration_reports_all_that_is_wrong_with_it(
    job: Job, simdist: Simdist, tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "machine.toml").write_text(text)

    (_, line) = problems(simdist("validate", job("total", '[cluster]\ncalibration = "machine.toml"')))

    assert line == f"cluster.calibration: machine.toml: {problem}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[cluster]\ncalibration = "a\\u0000b"', "cluster.calibration: a\\x00b: cannot be read: embedded null byte"),
        ('[env]\n"A\\u0000" = "x"', 'env."A\\x00": its name has a NUL character, which no environment can hold'),
        ('[env]\nA = "x\\u0000"', "env.A: its value has a NUL character, which no environment can hold"),
    ],
)
def test_a_nul_in_a_file(job: Job, simdist: Simdist, text: str, problem: str) -> None:
    assert problems(simdist("validate", job("total", text)))[1:] == [problem]


@pytest.mark.parametrize(
    "words", [["run", "a\0b"], ["show", "a\0b"], ["list", "a\0b"], ["validate", "a\0b"], ["calibrate", "-o", "a\0b"]]
)
def test_a_nul_in_a_path(simdist: Simdist, words: list[str]) -> None:
    assert "a\\x00b" in refused(simdist(*words))[0]


@pytest.mark.parametrize("option", ["--json", "--trace", "--timeline", "--flight-recorder"])
def test_a_nul_in_an_outputs_path(job: Job, simdist: Simdist, option: str) -> None:
    path = "a\0b.svg"

    assert problems(simdist("run", job("total"), option, path))[1].startswith(
        f"{option} a\\x00b.svg: cannot be written"
    )


# -- outputs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "first", "second"),
    [
        ("run", "--json", "--trace"),
        ("run", "--json", "--events"),
        ("run", "--json", "--timeline"),
        ("run", "--trace", "--events"),
        ("run", "--trace", "--timeline"),
        ("run", "--events", "--timeline"),
        ("run", "--json", "--flight-recorder"),
        ("parity", "--json", "--html"),
    ],
)
def test_two_outputs_in_one_place_are_refused(
    job: Job, simdist: Simdist, tmp_path: Path, command: str, first: str, second: str
) -> None:
    out, link = tmp_path / "out.svg", tmp_path / "link.svg"
    out.write_text("old")
    link.symlink_to(out)

    for other in (out, tmp_path / "." / "out.svg", link):
        assert f"{first} and {second}: two outputs in one file" in problems(
            simdist(command, job("total"), first, out, second, other)
        )
    assert out.read_text() == "old"


@pytest.mark.parametrize(
    ("command", "option"),
    [("run", "--json"), ("run", "--events"), ("parity", "--html"), ("show", "--timeline")],
)
def test_an_output_in_place_of_the_input_is_refused(
    job: Job, simdist: Simdist, tmp_path: Path, command: str, option: str
) -> None:
    file = tmp_path / "file.svg"
    text = Path(job("total")).read_text() if command != "show" else event()
    file.write_text(text)

    lines = problems(simdist(command, file, option, file))

    assert f"{option}: {file} is what is read; expected another file" in lines
    assert file.read_text() == text


def test_dev_null_takes_any_number_of_outputs(job: Job, simdist: Simdist) -> None:
    assert simdist("run", job("total"), "--json", "/dev/null", "--trace", "/dev/null").exit_code == 0


def test_an_output_that_fails_leaves_the_old_file_and_nothing_else(
    job: Job, simdist: Simdist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "out.json").write_text("old")
    file = job("total")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    result = simdist("run", file, "--json", out / "out.json")

    assert result.exit_code == 2
    assert result.stderr == f"{out / 'out.json'}: cannot be written: No space left on device\n"
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("out.json", "old")]


def test_an_output_keeps_its_mode_and_its_link(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    out, link = tmp_path / "out.json", tmp_path / "link.json"
    out.write_text("old")
    out.chmod(0o640)
    link.symlink_to(out)

    assert simdist("run", job("total"), "--json", link).exit_code == 0
    assert link.is_symlink()
    assert out.stat().st_mode & 0o777 == 0o640
    assert json.loads(out.read_text())["ok"]


# -- titles and texts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "character", "position"),
    [
        ("a\\u001b[31mred", "\\x1b", 2),
        ("\\u0007", "\\x07", 1),
        ("two\\nlines", "\\n", 4),
        ("ab\\u202ecd", "\\u202e", 3),
    ],
)
def test_a_title_with_control_characters_is_refused(
    simdist: Simdist, tmp_path: Path, title: str, character: str, position: int
) -> None:
    file = tmp_path / "file.toml"
    file.write_text(f'title = "{title}"\nworld_size = 1\n[workload]\ntarget = "math:sqrt"\nargs = [4]\n')

    assert problems(simdist("run", file))[1] == (
        f"title: control character '{character}' at position {position}; expected one line of plain text"
    )


def test_what_a_program_says_reaches_terminal_and_picture_as_escapes(
    module: Callable[[str], str], simdist: Simdist, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    picture, trace = tmp_path / "picture.svg", tmp_path / "trace.json"
    file = module(
        "import torch.distributed as dist\n"
        "def work():\n"
        "    dist.init_process_group('gloo')\n"
        "    dist.new_group([0, 1], group_desc='desc\\x1b[31m $\\\\frac$ \\U0001f680')\n"
        "    dist.barrier()\n"
        "    raise RuntimeError('red\\x1b[31m \\x00 \\u202e $x_$')\n"
    )

    result = simdist("run", file, "--timeline", picture, "--trace", trace)

    assert result.exit_code == 1
    assert "raised RuntimeError: red\\x1b[31m \\x00 \\u202e $x_$" in result.stdout
    assert "\x1b" not in result.output
    assert "Glyph" not in result.output
    xml.etree.ElementTree.parse(picture)
    assert "\x1b" not in simdist("show", trace).output
