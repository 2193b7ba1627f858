from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simdist.errors import ScenarioError
from simdist.faults import Crash, Hang
from simdist.scenario import load

Write = Callable[..., str]
KINDS = (
    "crash, host_crash, hang, signal, raise, slow_rank, clock_skew, link_delay, link_loss, link_slow, "
    "partition, isolate, hold, store_delay, store_away, store_lost, store_stale, io_error, short_write, "
    "slow_disk, disk_full, bit_rot, lost_sync, bit_flip, bad_values, wrong_result, device_error, device_wrong"
)


def problems_of(source: str, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(ScenarioError) as caught:
        load(source, overrides=overrides)
    assert caught.value.source == source
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("world_sise = 4", "world_sise: unknown key; did you mean 'world_size'?"),
        ('world_size = "four"', "world_size: expected a whole number, found the text 'four'"),
        ("world_size = 4.5", "world_size: expected a whole number, found the number 4.5"),
        ("world_size = true", "world_size: expected a whole number, found true"),
        ("world_size = 0", "world_size: 0 is too small; the least is 1"),
        ("", "world_size: missing; it has no default"),
        ("world_size = 2\nseed = -1", "seed: -1 is too small; the least is 0"),
        ("world_size = 2\ntitle = 3", "title: expected a text in quotes, found the number 3"),
        ('world_size = 2\nbackend = "glo"', "backend: unknown 'glo'; did you mean 'gloo'?"),
        ('world_size = 2\npolicy = "zzz"', "policy: unknown 'zzz'; known: fifo, random"),
        ("world_size = 2\nfaults = 3", "faults: expected a list of tables, [[faults]], found the number 3"),
        ("world_size = 2\nfaults = [3]", "faults[0]: expected a table, found the number 3"),
        ("world_size = 2\nexpect = []", "expect: expected a table, found a list"),
        ("world_size = 2\nenv = {A = 1}", "env.A: expected a text in quotes, found the number 1"),
        ("world_size = 4\ncluster = {hosts = 5}", "cluster.hosts: 5 hosts for 4 ranks; a host has at least one"),
        ("world_size = 4\ncluster = {hosts = 3}", "cluster: 4 ranks do not fill 3 hosts evenly"),
        (
            'world_size = 4\ncluster = {latency = "3 m"}',
            "cluster.latency: '3 m' is no duration; write '3ms', '1.5s', '250us', '30min', '2h'",
        ),
        (
            'world_size = 4\ncluster = {bandwidth = "fast"}',
            "cluster.bandwidth: 'fast' is no bandwidth; write '25Gbit/s', '1GB/s', '100MiB/s'",
        ),
        (
            'world_size = 4\ncluster = {topology = "fattree"}',
            "cluster.topology: unknown 'fattree'; did you mean 'fat_tree'?",
        ),
        (
            "world_size = 4\ncluster = {topology = 3}",
            "cluster.topology: expected 'uniform' or 'one_host' or 'switched' or 'rail_optimised' or 'fat_tree', found "
            "the number 3",
        ),
        (
            'world_size = 4\ncluster = {topology = "switched"}',
            "cluster.hosts: missing; topology 'switched' has no default for it",
        ),
        (
            'world_size = 4\ncluster = {topology = "one_host", hosts = 2}',
            "cluster.hosts: unknown key; known: topology, local_latency, local_bandwidth, bus_bandwidth, "
            "devices_per_host, device_memory, calibration",
        ),
        (
            'world_size = 4\nbackend = "nccl"\n[device]\nmodel = "h10"',
            "device.model: unknown device 'h10'; did you mean 'h100'?",
        ),
        (
            'world_size = 4\nbackend = "nccl"\n[device]\nflops = 1e12',
            "device.bandwidth: missing; it has no default without a model",
        ),
        (
            'world_size = 4\nbackend = "nccl"\n[device]\nmodel = "h100"\nlanch = "3us"',
            "device.lanch: unknown key; did you mean 'launch'?",
        ),
        (
            'world_size = 4\nbackend = "nccl"\n[nccl]\nalgorithm = "rings"',
            "nccl.algorithm: unknown 'rings'; did you mean 'ring'?",
        ),
        (
            'world_size = 4\nbackend = "nccl"\n[nccl]\nalgoritm = "ring"',
            "nccl.algoritm: unknown key; did you mean 'algorithm'?",
        ),
        (
            'world_size = 4\n[device]\nmodel = "h100"',
            "device: the world has no devices; say devices_per_host in [cluster]",
        ),
        (
            'world_size = 4\ncluster = {topology = "fat_tree", hosts = 2, hosts_per_leaf = 0}',
            "cluster.hosts_per_leaf: 0 is too small; the least is 1",
        ),
        (
            'world_size = 12\ncluster = {topology = "rail_optimised"}',
            "cluster: 12 ranks do not fill hosts of 8 GPUs evenly",
        ),
    ],
)
def test_a_bad_key_or_value_is_reported_in_plain_words(write: Write, text: str, problem: str) -> None:
    assert problem in problems_of(write(text))


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (
            'kind = "dorp"\nrank = 1',
            f".kind: unknown fault 'dorp'; known: {KINDS}",
        ),
        ('kind = "crsh"\nrank = 1', ".kind: unknown fault 'crsh'; did you mean 'crash'?"),
        ("rank = 1", f".kind: missing; the kinds are {KINDS}"),
        ('kind = "crash"\nrank = 9\nstep = 1', ".rank: rank 9 is outside the world of 4 ranks"),
        ('kind = "crash"\nstep = 1', ".rank: missing; it has no default"),
        ('kind = "crash"\nrank = 1', ": no trigger; give a time, a step, a point or an operation"),
        (
            'kind = "crash"\nrank = 1\nstep = 1\nat = "3ms"',
            ": a time and a step, point or operation are two triggers; give one of them",
        ),
        (
            'kind = "crash"\nrank = 1\nop = "all_reduc"',
            ".op: unknown operation 'all_reduc'; did you mean 'all_reduce'?",
        ),
        ('kind = "crash"\nrank = 1\nstep = 1\nwhen = "durin"', ".when: unknown 'durin'; did you mean 'during'?"),
        (
            'kind = "crash"\nrank = 1\nstep = 1\nlife = 1',
            ".life: 1 never comes: with max_restarts = 0 the last life is 0",
        ),
        (
            'kind = "crash"\nrank = 1\nstep = 1\nlife = "all"',
            ".life: expected a life counted from 0, or \"every\", found the text 'all'",
        ),
        (
            'kind = "crash"\nrank = 1\nstep = 1\nsignal = "SIGKIL"',
            ".signal: unknown signal 'SIGKIL'; expected a name such as 'SIGKILL'",
        ),
        ('kind = "slow_rank"\nrank = 1\ndelay = "1ms"\nstart = "2s"\nuntil = "1s"', ".until: ends before it starts"),
        ('kind = "partition"\ngroups = [[0, 1]]', ".groups: a partition needs at least two groups"),
        ('kind = "partition"\ngroups = [[0], [0, 1]]', ".groups: rank 0 is in more than one group"),
        ('kind = "partition"\ngroups = [[0], [7]]', ".groups: rank 7 is outside the world of 4 ranks"),
        ('kind = "partition"\ngroups = [[0], ["a"]]', ".groups[1][0]: expected a whole number, found the text 'a'"),
        ('kind = "link_delay"\nsrc = 0\ndst = 4\ndelay = "1s"', ".dst: rank 4 is outside the world of 4 ranks"),
        (
            'kind = "raise"\nrank = 1\nat = "3ms"',
            ".at: no program raises at a time; give an operation, a step or a point",
        ),
        (
            'kind = "raise"\nrank = 1\nop = "barrier"\nerror = "ValueEror"',
            ".error: unknown exception 'ValueEror'; expected one of Python's that takes a text, or one of "
            "torch.distributed: DistBackendError, DistError, DistNetworkError, DistStoreError, QueueEmptyError, "
            "or one of torch: AcceleratorError, OutOfMemoryError; did you mean 'ValueError'?",
        ),
        (
            'kind = "raise"\nrank = 1\nop = "barrier"\nwhen = "during"',
            ".when: 'during' is too late to raise; the exception comes in place of the operation",
        ),
        ('kind = "store_delay"\ndelay = "1ms"\nrank = 4', ".rank: rank 4 is outside the world of 4 ranks"),
        ('kind = "crash"\nrank = 1\nat_ns = 5', ".at_ns: unknown key; did you mean 'at'?"),
        (
            'kind = "slow_rank"\nrank = 1',
            ".delay: nothing makes the rank late; give delay, jitter, or tail_share and tail",
        ),
        ('kind = "store_lost"', ".at: missing; it has no default"),
        ('kind = "store_lost"\nat = "1s"\nrank = 1', ".rank: unknown key; known: at, name, after, optional"),
        ('kind = "hang"\nrank = 1\nstep = 1\nduratoin = "1s"', ".duratoin: unknown key; did you mean 'duration'?"),
    ],
)
def test_a_bad_fault_is_reported_by_its_place_and_the_files_keys(write: Write, fault: str, problem: str) -> None:
    good = '[[faults]]\nkind = "crash"\nrank = 1\nstep = 1'

    assert problems_of(write(f"world_size = 4\n{good}\n[[faults]]\n{fault}")) == (f"faults[1]{problem}",)


@pytest.mark.parametrize(
    ("fault", "problems"),
    [
        (
            'kind = "crahs"\nrank = 9\nop = "all_reduc"\nnth = 0\nsetp = 1\nafter = "late"',
            (
                ".kind: unknown fault 'crahs'; did you mean 'crash'?",
                ".rank: rank 9 is outside the world of 4 ranks",
                ".op: unknown operation 'all_reduc'; did you mean 'all_reduce'?",
                ".nth: 0 is not a count; the first operation is 1",
                ".setp: unknown key; did you mean 'step'?",
                ".after: no fault is called 'late'; none has a name",
            ),
        ),
        (
            'rank = "1"\nat_step = -1\nsignal = 3',
            (
                f".kind: missing; the kinds are {KINDS}",
                ".rank: expected a whole number, found the text '1'",
                ".at_step: -1 never comes; steps count from 0",
                ".signal: expected a text in quotes, found the number 3",
            ),
        ),
        (
            'kind = 3\nat = "soon"',
            (
                '.kind: expected the name of a fault or "module:Class", found the number 3',
                ".at: 'soon' is no duration; write '3ms', '1.5s', '250us', '30min', '2h'",
            ),
        ),
        # A class that can't be imported may have any key and any errors of its own: none are reported.
        (
            'kind = "nowhere:Storm"\nrank = 9\nsetp = 1',
            (
                ".kind: no module 'nowhere' in {folder} or on Python's path",
                ".rank: rank 9 is outside the world of 4 ranks",
            ),
        ),
        # The problem with `error` differs among the kinds that have this key, so it is not reported.
        ('kind = "rais"\nerror = "EFOO"', (".kind: unknown fault 'rais'; did you mean 'raise'?",)),
    ],
)
def test_what_is_wrong_whatever_the_kind_is_reported_beside_a_bad_kind(
    write: Write, tmp_path: Path, fault: str, problems: tuple[str, ...]
) -> None:
    lines = [f"faults[0]{problem.replace('{folder}', str(tmp_path))}" for problem in problems]

    assert problems_of(write(f"world_size = 4\n[[faults]]\n{fault}")) == tuple(lines)


@pytest.mark.parametrize(
    ("fault", "problems"),
    [
        (
            'kind = "crash"\nrank = 1\nsetp = 3\nop = "all_reduce"\nnth = 0\nlife = 3',
            (
                ".setp: unknown key; did you mean 'step'?",
                ".nth: 0 is not a count; the first operation is 1",
                ".life: 3 never comes: with max_restarts = 0 the last life is 0",
            ),
        ),
        # The unknown key may be meant as the operation that `when` needs, and as the trigger.
        ('kind = "crash"\nrank = 1\nopp = "barrier"\nwhen = "during"', (".opp: unknown key; did you mean 'op'?",)),
        (
            'kind = "crash"\nrank = 1\nsignal = 3',
            (
                ".signal: expected a text in quotes, found the number 3",
                ": no trigger; give a time, a step, a point or an operation",
            ),
        ),
        (
            'kind = "disk_full"\nfree = 5',
            (
                ".free: unknown key; did you mean 'free_bytes'?",
                ": it strikes what a rank does to a simulated disk, and there is none; mount one",
            ),
        ),
        (
            'kind = "partition"\ngroups = [[0], [9, "a"]]',
            (
                ".groups[1][1]: expected a whole number, found the text 'a'",
                ".groups: rank 9 is outside the world of 4 ranks",
            ),
        ),
    ],
)
def test_one_bad_key_hides_no_other_problem_of_its_fault(write: Write, fault: str, problems: tuple[str, ...]) -> None:
    lines = tuple(f"faults[0]{problem}" for problem in problems)

    assert problems_of(write(f"world_size = 4\n[[faults]]\n{fault}")) == lines


def test_a_file_takes_the_words_of_fault_classes_for_a_step_and_a_point(write: Write) -> None:
    one, other = (
        load(
            write(
                f'world_size = 4\n[[faults]]\nkind = "crash"\nrank = 1\n{step} = 3\n'
                f'[[faults]]\nkind = "hang"\nrank = 1\n{point} = "saved"'
            )
        )
        for step, point in (("step", "point"), ("at_step", "at_point"))
    )

    assert one.faults == other.faults == (Crash(rank=1, at_step=3), Hang(rank=1, at_point="saved"))


def test_a_step_in_both_words_is_reported(write: Write) -> None:
    assert problems_of(write('world_size = 4\n[[faults]]\nkind = "crash"\nrank = 1\nstep = 3\nat_step = 3')) == (
        "faults[0].at_step: at_step and step are one key; give one of them",
    )


def test_a_fault_with_one_bad_key_still_has_its_rank_checked(write: Write) -> None:
    assert problems_of(write('world_size = 4\n[[faults]]\nkind = "crash"\nrank = 9\nstep = "x"')) == (
        "faults[0].step: expected a whole number, found the text 'x'",
        "faults[0].rank: rank 9 is outside the world of 4 ranks",
    )


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        ("deadlok = true", "expect.deadlok: unknown key; did you mean 'deadlock'?"),
        ("deadlock = 1", "expect.deadlock: expected true or false, found the number 1"),
        ('outcomes = "retruned"', "expect.outcomes: unknown 'retruned'; did you mean 'returned'?"),
        ('outcomes = {"1" = "raisd"}', "expect.outcomes.1: unknown 'raisd'; did you mean 'raised'?"),
        ('outcomes = {"0-9" = "raised"}', 'expect.outcomes."0-9": rank 9 is outside the world of 4 ranks'),
        ('outcomes = {"0-9" = "raisd"}', 'expect.outcomes."0-9": rank 9 is outside the world of 4 ranks'),
        ('outcomes = {"3-1" = "raised"}', 'expect.outcomes."3-1": 3-1 is a descending range'),
        ('outcomes = {"0" = "raised", "0-1" = "raised"}', 'expect.outcomes."0-1": rank 0 is named twice'),
        ('outcomes = {all = "raised"}', 'expect.outcomes.all: expected ranks as the key, such as "0" or "1-3"'),
        ("exception = {typ = 'E'}", "expect.exception.typ: unknown key; did you mean 'type'?"),
        ("exception = {}", "expect.exception: is empty; give type, message or pattern"),
        (
            "exception = {'0' = {pattern = '('}}",
            "expect.exception.0.pattern: '(' is no regex: missing ), unterminated ",
        ),
        ("equal_values = 1", "expect.equal_values: expected true, false or a list of keys, found the number 1"),
        ("max_virtual_time = '1 year'", "expect.max_virtual_time: '1 year' is no duration; write "),
        ("min_virtual_time = 2\nmax_virtual_time = 1", "expect.min_virtual_time: is later than max_virtual_time"),
        ("min_values = {a = 'b'}", "expect.min_values.a: expected a number, found the text 'b'"),
        ("restarts = '1'", "expect.restarts: expected a whole number, found the text '1'"),
    ],
)
def test_a_bad_expectation_is_reported(write: Write, expect: str, problem: str) -> None:
    found = problems_of(write(f"world_size = 4\n[expect]\n{expect}"))

    assert [line for line in found if line.startswith(problem)]


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("jbo:work", "target: no module 'jbo' in {folder} or on Python's path; did you mean 'job'?"),
        ("job.sub:work", "target: no module 'job.sub' in {folder} or on Python's path"),
        ("job:wrok", "target: module 'job' has no function 'wrok'; did you mean 'work'?"),
        ("job:constant", "target: 'job:constant' is no function but a int"),
        ("job", "target: 'job' is no 'module:function'"),
        ("job:work:more", "target: 'job:work:more' is no 'module:function'"),
        ("raising:work", "target: importing 'raising' raised ZeroDivisionError: division by zero (raising.py, line 2)"),
        ("leaving:work", "target: importing 'leaving' raised SystemExit: 3 (leaving.py, line 1)"),
        (
            "missing:work",
            "target: importing 'missing' raised ModuleNotFoundError: No module named 'nowhere' (missing.py, ",
        ),
        ("broken:work", "target: importing 'broken' raised SyntaxError: "),
    ],
)
def test_a_workload_that_cannot_be_had_is_reported(write: Write, tmp_path: Path, target: str, problem: str) -> None:
    (tmp_path / "raising.py").write_text("\nx = 1 / 0\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "missing.py").write_text("import nowhere\n")
    (tmp_path / "broken.py").write_text("def work(:\n")

    (line,) = problems_of(write("world_size = 2", workload=f'[workload]\ntarget = "{target}"'))

    assert line.startswith("workload." + problem.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("kwargs = {round = 1}", "kwargs: got an unexpected keyword argument 'round'; did you mean 'rounds'?"),
        ("args = [1, 2, 3]", "args: too many positional arguments; the function takes (rounds=1, label='')"),
        ("args = 3", "args: expected a list, found the number 3"),
        ("arg = []", "arg: unknown key; did you mean 'args'?"),
    ],
)
def test_arguments_that_do_not_fit_the_function_are_reported(write: Write, arguments: str, problem: str) -> None:
    source = write("world_size = 2", workload=f'[workload]\ntarget = "job:work"\n{arguments}')

    assert problems_of(source) == (f"workload.{problem}",)


def test_a_file_without_a_workload_is_reported(write: Write) -> None:
    assert problems_of(write("world_size = 2", workload="")) == (
        "workload: missing; it has no default: say target = 'module:function'",
    )


def test_every_problem_of_a_file_is_in_one_message(write: Write) -> None:
    source = write(
        """
        world_sise = 4
        world_size = 4
        [cluster]
        latency = "soon"
        [[faults]]
        kind = "crsh"
        [[faults]]
        kind = "hang"
        rank = 4
        at = "1s"
        [expect]
        outcomes = "fine"
        """,
        workload='[workload]\ntarget = "job:wrok"',
    )

    found = problems_of(source, "seed=x", "nonsense")

    assert [line.partition(": ")[0] for line in found] == [
        "--set nonsense",
        "--set seed",
        "world_sise",
        "workload.target",
        "cluster.latency",
        "faults[0].kind",
        "faults[1].rank",
        "expect.outcomes",
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"world_size = \n", "line 1, column 14: not TOML: invalid value"),
        (b"a = 1\na = 2\n", "line 2, column 6: not TOML: cannot overwrite a value"),
        (b"a = [1", "end of document: not TOML: unclosed array"),
        (b"a = '\xff'", "not TOML: byte 5 is no UTF-8 text"),
    ],
)
def test_what_is_no_toml_is_reported_with_its_place(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(data)

    assert problems_of(str(path)) == (problem,)


def test_a_missing_file_is_reported_with_its_neighbour(write: Write, tmp_path: Path) -> None:
    write("world_size = 2", name="deadlock.toml")

    assert problems_of(str(tmp_path / "deadlok.toml")) == ("no such file; did you mean 'deadlock'?",)
    assert problems_of(str(tmp_path)) == ("cannot be read: Is a directory",)


def test_the_error_lists_its_problems_below_the_files_name(write: Write) -> None:
    source = write("world_sise = 4")

    with pytest.raises(ScenarioError) as caught:
        load(source)

    assert str(caught.value).splitlines() == [
        f"{source}: 2 problems",
        "  world_size: missing; it has no default",
        "  world_sise: unknown key; did you mean 'world_size'?",
    ]
