"""Flight records: read from files in torch's format, compared with simdist's own record, and written out."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from simdist.cli._real import _print as print_report
from simdist.hardware._flight import FlightRecord, read_record, watchdog_environment
from simdist.hardware._journal import Journal
from simdist.hardware.compare import _parity
from simdist.hardware.compare._compare import recorders
from simdist.hardware.compare._dumps import write_dumps
from simdist.hardware.compare._match import Match, match, with_device_times
from simdist.hardware.compare._outcome import matches_of, outcome_of
from simdist.hardware.compare._replay import RealReport
from simdist.records import Completed, Packed, unpacked
from simdist.scenario import load, run_scenario
from tests.hardware.jobs import job
from tools.parity_nccl import flight_check

ORIGIN_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def entry(op: str, number: int, **changes: Any) -> dict[str, Any]:
    """Return an entry of NCCL as torch 2.13 writes it: a completed collective of four floats on two ranks."""
    return {
        "frames": [{"name": "all_reduce", "filename": "distributed_c10d.py", "line": 3245}],
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "1",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": ORIGIN_NS + number * 10 * MS,
        "duration_ms": 2.5,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": ORIGIN_NS + number * 10 * MS + 50 * MS,
        "time_discovered_completed_ns": ORIGIN_NS + number * 10 * MS + 90 * MS,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **changes,
    }


def message(op: str, number: int) -> dict[str, Any]:
    changes = {"collective_seq_id": 0, "p2p_seq_id": number, "is_p2p": True}
    return entry(op, number, **changes)


def dump(*entries: dict[str, Any]) -> bytes:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    found = {"version": "2.10", "pg_config": config, "comm_lib_version": "2.27.3", "pg_status": {}}
    return pickle.dumps({**found, "nccl_comm_state": {}, "entries": list(entries)}, protocol=2)


def issue(op: str, sequence: int, **changes: Any) -> Packed:
    """Return the event of the same operation in simdist's journal."""
    values = {"nbytes": 16, "dtype": "float32", "shape": (4,), "peer": -1, **changes}
    return (10 * (sequence + 1) * MS - 1000, "issue", 0, op, "0", sequence, *values.values(), True, 0)


def complete(op: str, sequence: int, time_ns: int) -> Packed:
    return time_ns, "complete", 0, op, "0", sequence, time_ns, 0


GROUP: Packed = (0, "group", 0, "0", (0, 1), "default_pg")


def matched(records: Sequence[Packed], content: bytes, folder: Path, backend: str = "nccl") -> Match:
    (folder / "rank0-life0.flight").write_bytes(content)
    record = read_record(folder, 0, 0, ORIGIN_NS)
    assert record is not None
    return match(backend, [GROUP, *records], record)


# -- files -------------------------------------------------------------------------------------------------------------


def test_an_entry_has_the_times_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "rank3-life1.flight").write_bytes(dump(entry("_all_gather_base", 2, record_id=1)))

    record = read_record(tmp_path, 3, 1, ORIGIN_NS)

    assert record is not None
    assert (record.rank, record.life, record.at_end, record.is_whole, record.problem) == (3, 1, True, False, "")
    (one,) = record.entries
    assert (one.group, one.op, one.sequence, one.is_message, one.state) == (
        "0",
        "_all_gather_base",
        2,
        False,
        "completed",
    )
    assert (one.input_sizes, one.input_dtypes) == (((4,),), ("Float",))
    assert (one.created_ns, one.started_ns, one.completed_ns) == (20 * MS, 70 * MS, 110 * MS)
    assert one.duration_ns == 2_500_000
    assert one.frames == (("distributed_c10d.py", 3245, "all_reduce"),)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        dump(entry("all_reduce", 1))[:-40],
        b"\x80\x02",
        pickle.dumps({"entries": [{"state": "completed"}]}),
        pickle.dumps([1, 2]),
        pickle.dumps(Path("/")),
    ],
)
def test_a_damaged_file_is_reported_and_harms_nothing(content: bytes, tmp_path: Path) -> None:
    found = matched([issue("all_reduce", 0)], content, tmp_path)

    assert found.record.problem.startswith("cannot be read: ")
    assert str(found).startswith("rank 0: torch's flight record cannot be read: ")
    assert [point.ok for point in recorders([found])] == [True]
    assert with_device_times([issue("all_reduce", 0)], found) == [issue("all_reduce", 0)]


def test_the_watchdogs_file_serves_a_rank_that_could_not_write_its_own(tmp_path: Path) -> None:
    prefix = watchdog_environment(dataclasses.replace(job(tmp_path), backend="nccl"), life=1)
    assert len(set(prefix.values())) == 1
    Path(prefix["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + "2").write_bytes(dump(entry("all_reduce", 1)))

    record = read_record(tmp_path, 2, 1, 0)

    assert record is not None
    assert (record.at_end, record.watchdog_wrote, len(record.entries)) == (False, True, 1)
    assert [path.name for path in tmp_path.glob("rank*")] == ["rank-watchdog-life1-2"]  # a name for other nodes' files
    assert read_record(tmp_path, 2, 0, 0) is None


@pytest.mark.parametrize(("own", "entries"), [(dump(), 0), (dump()[:9], 1)])
def test_a_ranks_own_file_comes_first_if_it_can_be_read(own: bytes, entries: int, tmp_path: Path) -> None:
    (tmp_path / "rank0-life0.flight").write_bytes(own)
    (tmp_path / "rank-watchdog-life0-0").write_bytes(dump(entry("all_reduce", 1)))

    record = read_record(tmp_path, 0, 0, 0)

    assert record is not None
    assert (len(record.entries), record.watchdog_wrote) == (entries, True)


def test_gloo_has_no_watchdog(tmp_path: Path) -> None:
    assert watchdog_environment(job(tmp_path), 0) == {}


# -- two recorders -----------------------------------------------------------------------------------------------------


def test_nccls_names_are_those_of_our_operations(tmp_path: Path) -> None:
    names = {
        "all_reduce": "all_reduce",
        "broadcast": "broadcast",
        "reduce": "reduce",
        "all_gather": "all_gather",
        "_all_gather_base": "all_gather",
        "all_gather_single": "all_gather",
        "reduce_scatter": "reduce_scatter",
        "_reduce_scatter_base": "reduce_scatter",
        "all_to_all": "all_to_all",
        "all_to_all_single": "all_to_all",
        "gather": "gather",
        "scatter": "scatter",
        "all_reduce_barrier": "barrier",
        "allreduce_coalesced": "all_reduce",
    }
    records = [issue(ours, sequence) for sequence, ours in enumerate(names.values())]

    found = matched(records, dump(*(entry(name, number) for number, name in enumerate(names, 1))), tmp_path)

    assert (found.disagreement, found.compared) == (None, len(names))
    assert [key for key, _ in found.pairs] == [(ours, "0", index) for index, ours in enumerate(names.values())]


def test_a_coalesced_entry_stands_for_an_operation_of_each_tensor(tmp_path: Path) -> None:
    tensors = {"input_sizes": [[4], [2]], "input_dtypes": ["Float", "Double"]}
    content = dump(entry("all_gather_into_tensor_coalesced", 1, **tensors), entry("all_reduce", 2))
    records = [issue("all_gather", 0), issue("all_gather", 1, dtype="float64"), issue("all_reduce", 2)]

    found = matched(records, content, tmp_path)

    assert (found.disagreement, found.compared) == (None, 2)
    ends = [record[0] for record in with_device_times(records, found) if record[1] == "complete"]
    assert ends == [12_500_000, 12_500_000, 22_500_000]


def test_an_entry_of_several_tensors_may_be_one_operation(tmp_path: Path) -> None:
    tensors = {"input_sizes": [[4], [2]], "input_dtypes": ["Float", "Float"]}
    content = dump(entry("all_gather", 1, **tensors), entry("all_gather", 2, **tensors), entry("all_gather", 3))
    records = [issue("all_gather", 0, nbytes=24, shape=(6,)), issue("all_gather", 1), issue("all_gather", 2, nbytes=8)]

    found = matched([*records, issue("all_gather", 3)], content, tmp_path, backend="gloo")

    assert [key[2] for key, _ in found.pairs] == [0, 1, 2, 3]
    assert found.disagreement is None


def test_groups_without_names_are_not_compared(tmp_path: Path) -> None:
    content = dump(entry("all_gather", 1, process_group=("", "")), entry("all_reduce", 2, process_group=("", "")))

    found = matched([issue("all_reduce", 0)], content, tmp_path, backend="gloo")

    assert (found.compared, found.disagreement) == (0, None)


def test_messages_are_compared_apart_and_what_launches_them_is_none(tmp_path: Path) -> None:
    content = dump(message("send 0->1", 1), message("recv 0<-1", 1), message("coalesced", 1), entry("all_reduce", 1))
    records = [issue("send", 0), issue("recv", 1), issue("all_reduce", 0)]

    found = matched(records, content, tmp_path)

    assert (found.disagreement, found.compared) == (None, 3)


def test_messages_are_compared_up_to_the_first_that_failed(tmp_path: Path) -> None:
    error: Packed = (30 * MS, "error", 0, "recv", "0", 1, "RuntimeError", "gone")

    found = matched([issue("send", 0), issue("recv", 1), error], dump(message("send 0->1", 1)), tmp_path)

    assert (found.disagreement, found.compared) == (None, 1)


def test_collectives_launched_together_end_the_comparison(tmp_path: Path) -> None:
    content = dump(entry("all_reduce", 1), entry("coalesced", 2))
    records = [issue("all_reduce", 0), issue("broadcast", 1), issue("all_gather", 2)]

    assert matched(records, content, tmp_path).compared == 1


DISAGREEMENTS = {
    "another kind": (
        [issue("all_reduce", 0)],
        [entry("broadcast", 1)],
        ("broadcast as collective 1 of group '0' of Float[4]", "all_reduce #0 in group '0', 16 bytes of float32"),
    ),
    "another size": (
        [issue("all_reduce", 0)],
        [entry("all_reduce", 1, input_sizes=[[5]])],
        ("all_reduce as collective 1 of group '0' of Float[5]", "all_reduce #0 in group '0', 16 bytes of float32"),
    ),
    "another type": (
        [issue("all_reduce", 0)],
        [entry("all_reduce", 1, input_dtypes=["Int"])],
        ("all_reduce as collective 1 of group '0' of Int[4]", "all_reduce #0 in group '0', 16 bytes of float32"),
    ),
    "one that torch lacks": (
        [issue("all_reduce", 0), issue("barrier", 1, nbytes=0, dtype="", shape=())],
        [entry("all_reduce", 1)],
        ("nothing", "barrier #1 in group '0'"),
    ),
    "one that simdist lacks": (
        [issue("all_reduce", 0)],
        [entry("all_reduce", 1), entry("all_reduce", 2)],
        ("all_reduce as collective 2 of group '0' of Float[4]", "nothing"),
    ),
    "a group that simdist lacks": (
        [issue("all_reduce", 0)],
        [entry("all_reduce", 1), entry("all_reduce", 1, process_group=("1", "dp"))],
        ("all_reduce as collective 1 of group '1' of Float[4]", "nothing"),
    ),
    "a message": (
        [issue("send", 0)],
        [message("recv 0<-1", 1)],
        ("recv as message 1 of group '0' of Float[4]", "send #0 in group '0', 16 bytes of float32"),
    ),
    "more than torch has kept": (
        [issue("all_reduce", 0)],
        [entry("all_reduce", 2), entry("all_reduce", 3)],
        ("all_reduce as collective 3 of group '0' of Float[4]", "nothing"),
    ),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_a_disagreement_is_shown_from_both_sides(name: str, tmp_path: Path) -> None:
    records, entries, said = DISAGREEMENTS[name]

    found = matched(records, dump(*entries), tmp_path)

    assert found.disagreement == said
    assert str(found) == f"rank 0: torch's flight recorder saw {said[0]}, simdist recorded {said[1]}"
    (point,) = recorders([found])
    assert (point.name, point.rank, point.ok) == ("flight record", 0, False)
    assert (point.simulated, point.real) == (f"simdist recorded {said[1]}", f"torch's flight recorder saw {said[0]}")


def test_of_what_torch_has_overwritten_nothing_is_asked(tmp_path: Path) -> None:
    records = [issue(op, index) for index, op in enumerate(("broadcast", "all_reduce", "reduce", "all_reduce"))]

    found = matched(records, dump(entry("reduce", 3), entry("all_reduce", 4)), tmp_path)

    assert [key[2] for key, _ in found.pairs] == [2, 3]
    assert found.disagreement is None


def test_the_program_may_have_gone_on_after_the_watchdog_wrote(tmp_path: Path) -> None:
    records = [issue(op, index) for index, op in enumerate(("broadcast", "all_reduce", "reduce", "all_reduce"))]
    (tmp_path / "rank-watchdog-life0-0").write_bytes(dump(entry("all_reduce", 2), entry("reduce", 3)))
    record = read_record(tmp_path, 0, 0, ORIGIN_NS)
    assert record is not None

    found = match("nccl", [GROUP, *records], record)

    assert [key[2] for key, _ in found.pairs] == [1, 2]
    assert found.disagreement is None


def test_a_recorder_that_is_switched_off_says_nothing(tmp_path: Path) -> None:
    empty = {"version": "2.10", "pg_config": {}, "comm_lib_version": "", "pg_status": {}, "entries": []}

    found = matched([issue("all_reduce", 0)], pickle.dumps(empty), tmp_path)

    assert (found.compared, found.disagreement, found.record.problem) == (0, None, "")


def test_gloo_sums_each_entry_of_a_list_and_records_no_message(tmp_path: Path) -> None:
    listed = issue("reduce_scatter", 0, nbytes=32)
    records = [listed, issue("send", 0), issue("reduce_scatter", 1), issue("barrier", 2, nbytes=0, dtype="", shape=())]
    names = ("all_reduce", "all_reduce", "all_reduce", "barrier")

    content = dump(*(entry(name, number) for number, name in enumerate(names, 1)))

    assert matched(records, content, tmp_path, backend="gloo").compared == 4


# -- times -------------------------------------------------------------------------------------------------------------


def test_an_operation_completes_when_its_kernel_ends(tmp_path: Path) -> None:
    records = [issue("all_reduce", 0), complete("all_reduce", 0, 10 * MS + 5)]

    reported = with_device_times(records, matched(records, dump(entry("all_reduce", 1)), tmp_path))

    assert reported == [records[0], (12_500_000, "complete", 0, "all_reduce", "0", 0, 10 * MS, 0)]


def test_kernels_of_a_group_run_one_after_the_other(tmp_path: Path) -> None:
    entries = [entry("all_reduce", 1, duration_ms=25.0), entry("all_reduce", 2), message("send 0->1", 1)]
    records = [issue("all_reduce", 0), issue("all_reduce", 1), issue("send", 0)]

    reported = with_device_times(records, matched(records, dump(*entries), tmp_path))

    completed = [record for record in map(unpacked, reported) if isinstance(record, Completed)]
    ends = [(record.op, record.begin_ns, record.time_ns) for record in completed]
    assert ends == [
        ("all_reduce", 10 * MS, 35 * MS),
        ("all_reduce", 35 * MS, 37_500_000),
        ("send", 10 * MS, 12_500_000),
    ]


def test_no_kernel_ends_after_torch_has_noticed_its_end(tmp_path: Path) -> None:
    entries = [entry("all_reduce", 1, duration_ms=85.0), entry("all_reduce", 2, duration_ms=10.0)]
    entries[1]["time_discovered_completed_ns"] = ORIGIN_NS + 100 * MS
    records = [issue("all_reduce", 0), issue("all_reduce", 1)]

    reported = with_device_times(records, matched(records, dump(*entries), tmp_path))

    assert [record[0] for record in reported if record[1] == "complete"] == [95 * MS, 100 * MS]


def test_an_operation_that_failed_stays_so(tmp_path: Path) -> None:
    records = [issue("all_reduce", 0), (20 * MS, "error", 0, "all_reduce", "0", 0, "RuntimeError", "timed out")]

    assert with_device_times(records, matched(records, dump(entry("all_reduce", 1)), tmp_path)) == records


# -- a run -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path: Path) -> RealReport:
    """The files of two NCCL ranks: rank 0 returned, rank 1 was killed by its watchdog; and of an earlier life."""
    for rank, life in ((0, 0), (1, 0), (0, 1), (1, 1)):
        journal = Journal(tmp_path, rank, life)
        journal.note("origin", ORIGIN_NS, time_ns=life * 100 * MS)
        journal.note("start", life, 100, "0", time_ns=life * 100 * MS)
        journal.note("group", "0", (0, 1), "default_pg", time_ns=life * 100 * MS + rank)
        journal.note(*issue("all_reduce", 0)[1:2], *issue("all_reduce", 0)[3:], time_ns=life * 100 * MS + 5)
        journal.note("complete", "all_reduce", "0", 0, life * 100 * MS + 9, 0, time_ns=life * 100 * MS + 9)
        if rank == 0 and life == 1:
            journal.note("exit", "returned", 0, life, time_ns=200 * MS)
        journal.note("ended", 0 if rank == 0 else -6, False, time_ns=ORIGIN_NS + life * 100 * MS + 99)
        name = f"rank-watchdog-life{life}-{rank}" if rank else f"rank{rank}-life{life}.flight"
        created = {"time_created_ns": ORIGIN_NS + life * 100 * MS + 6, "time_discovered_completed_ns": None}
        (tmp_path / name).write_bytes(dump(entry("all_reduce", 1, **created)))
    one = dataclasses.replace(job(tmp_path, world_size=2), backend="nccl")
    matches = matches_of(one)
    plan = load("scenarios/ring_order.toml")
    return RealReport(plan, "nccl", 1.0, outcome_of(one, "", matches), (), (), matches=matches)


def test_a_run_has_the_groups_and_the_devices_times(report: RealReport) -> None:
    reported = [(event.time_ns, event.kind, event.rank) for event in report.result.events if event.kind != "start"]

    life = [
        (0, "group", -1),
        (5, "issue", 0),
        (5, "issue", 1),
        (99, "exit", 0),
        (99, "exit", 1),
        (2_500_006, "complete", 0),
        (2_500_006, "complete", 1),
    ]
    begun = 100 * MS
    assert reported[:7] == life
    assert reported[7] == (begun, "restart", -1)
    expected = [(time_ns + begun, kind, rank) for time_ns, kind, rank in life if (kind, rank) != ("exit", 0)]
    assert reported[8:] == [*expected, (200 * MS, "exit", 0)]
    assert report.ok


def test_nccls_dumps_are_handed_out_as_they_are_of_the_last_life(report: RealReport, tmp_path: Path) -> None:
    lines = write_dumps(report, tmp_path / "dumps")

    assert lines == []
    contents = {path.name: path.read_bytes() for path in (tmp_path / "dumps").iterdir()}
    assert contents == {
        "nccl_trace_rank_0": (tmp_path / "rank0-life1.flight").read_bytes(),
        "nccl_trace_rank_1": (tmp_path / "rank-watchdog-life1-1").read_bytes(),
    }


def test_a_rank_without_a_dump_is_reported(report: RealReport, tmp_path: Path) -> None:
    first, *_, last = report.matches
    bad = dataclasses.replace(last, record=dataclasses.replace(last.record, problem="cannot be read: EOFError"))

    lines = write_dumps(dataclasses.replace(report, matches=(first, bad)), tmp_path / "dumps")

    assert lines == [
        "rank 0: no dump; it left no flight record (returned)",
        "rank 1: no dump; its flight record cannot be read: EOFError",
    ]
    assert list((tmp_path / "dumps").iterdir()) == []


def test_a_run_whose_recorders_disagree_is_not_ok(report: RealReport) -> None:
    wrong = dataclasses.replace(report.matches[0], disagreement=("this", "that"))
    disagreeing = dataclasses.replace(report, matches=(wrong, *report.matches[1:]))

    assert not disagreeing.ok
    assert json.loads(json.dumps(disagreeing.summary()))["flight_records"][0] == {
        "rank": 0,
        "life": 0,
        "by": "rank",
        "problem": "",
        "entries": 1,
        "compared": 1,
        "disagreement": {"torch": "this", "simdist": "that"},
    }


def test_the_commands_page_shows_what_is_wrong_with_the_records(report: RealReport) -> None:
    wrong = dataclasses.replace(report.matches[1], disagreement=("this", "that"))
    bad = dataclasses.replace(wrong.record, problem="cannot be read: EOFError")

    def page(report: RealReport, *missing: str) -> str:
        stream = io.StringIO()
        print_report(Console(file=stream, width=100), report, missing)
        return stream.getvalue()

    assert "flight records" not in page(report)
    shown = page(dataclasses.replace(report, matches=(wrong, Match(bad))), "rank 1: no dump")
    assert [line.strip() for line in shown.split("flight records\n")[1].splitlines()[:3]] == [
        "rank 0 in life 1: torch's flight recorder saw this, simdist recorded that",
        "rank 0 in life 1: torch's flight record cannot be read: EOFError",
        "rank 1: no dump",
    ]


def test_a_scenario_whose_recorders_disagree_is_not_at_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load("scenarios/ring_order.toml")
    simulated = run_scenario(plan, record_results=True)
    right = Match(FlightRecord(0, 0, b""), compared=1)
    wrong = Match(FlightRecord(1, 0, b""), disagreement=("this", "that"))
    seen: list[RealReport] = []

    def replayed(*matches: Match) -> str:
        real = RealReport(plan, "gloo", 1.0, simulated.result, (), (), state=simulated.state, matches=matches)
        monkeypatch.setattr(_parity, "replay", lambda plan, **settings: real)
        report = _parity.check_parity(plan, seen=seen.append)
        assert report is not None
        return report.status

    assert replayed(right) == "parity"
    assert replayed(right, wrong) == "difference"
    assert [len(real.matches) for real in seen] == [1, 2]


def test_the_job_for_nccl_looks_at_every_ranks_record(report: RealReport) -> None:
    last = report.matches[1::2]
    wrong = dataclasses.replace(last[0], disagreement=("this", "that"))
    empty = Match(FlightRecord(0, 1, b""))

    assert flight_check("", last, [0, 1]).ok
    assert flight_check("", last, [0, 1]).evidence == "2 entries agree, 2 with a duration"
    assert flight_check("", last, [1], watchdog=True).ok
    assert flight_check("", last, [0], watchdog=True).evidence == "rank 0: the watchdog wrote no flight record"
    assert flight_check("", last, [0, 1, 2]).evidence == "rank 2: no flight record"
    assert not flight_check("", [wrong], [0]).ok
    assert flight_check("", [empty], [0]).evidence == "rank 0: the flight record has no operation"
