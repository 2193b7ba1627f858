"""Works and futures: when they return, what they hold, and on whose thread their callbacks run."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.inside.torch import future_values
from tests.c10d.worlds import MS, Diary, attempt, in_group, now_ns, ones, outcome, sleep_s, timed_out

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")


def reduced(rank: int) -> tuple[torch.Tensor, Any]:
    tensor = torch.full((4,), float(rank + 1))
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return tensor, work


def test_an_async_call_returns_before_its_peers_arrive() -> None:
    def body(rank: int) -> tuple[bool, float, float, bool]:
        dist.barrier()
        zero = now_ns()
        sleep_s(0.5 * rank)
        tensor, work = reduced(rank)
        issued_ns = now_ns() - zero
        before = tensor[0].item()
        completed = work.wait()
        return completed, issued_ns / MS, before, bool((tensor == 3).all())

    assert in_group(body, 2) == [(True, 0.0, 1.0, True), (True, 500.0, 2.0, True)]


def test_works_can_be_waited_for_in_any_order() -> None:
    def body(rank: int) -> list[float]:
        pairs = [reduced(rank + index) for index in range(3)]
        for _, work in reversed(pairs):
            work.wait()
        return [tensor[0].item() for tensor, _ in pairs]

    assert in_group(body, 2) == [[3, 5, 7]] * 2


def test_two_async_calls_in_opposite_order_are_matched_by_their_number() -> None:
    # As in real Gloo the n-th call meets the n-th of the others, whatever the tensors.
    def body(rank: int) -> list[float]:
        tensors = {name: torch.full((2,), value) for name, value in (("a", 1.0), ("b", 10.0))}
        works = [dist.all_reduce(tensors[name], async_op=True) for name in ("ab", "ba")[rank]]
        for work in works:
            assert work is not None
            work.wait()
        return [tensors["a"][0].item(), tensors["b"][0].item()]

    assert in_group(body, 2) == [[11, 11], [11, 11]]


def test_polling_a_future_ends_too() -> None:
    def body(rank: int) -> float:
        sleep_s(0.001 * rank)
        future = reduced(rank)[1].get_future()
        while not future.done():
            pass
        return float(future.value()[0][0].item())

    assert in_group(body, 2) == [3.0, 3.0]


# -- (i): real Gloo, group timeout 2 s, rank 1 missing or late ---------------------------------------------------------


def test_a_wait_that_gives_up_leaves_the_work_running() -> None:
    def body(rank: int) -> list[tuple[str, str, float]]:
        dist.barrier()
        diary = Diary(now_ns())
        if rank != 1:
            _, work = reduced(rank)
            diary.call("wait(0.5)", lambda: work.wait(timedelta(seconds=0.5)))
            diary.call("is_completed", work.is_completed, show=True)
            diary.call("is_success", work.is_success, show=True)
            diary.call("exception", work.exception, show=True)
            diary.call("wait", work.wait)
            diary.call("is_completed", work.is_completed, show=True)
            diary.call("is_success", work.is_success, show=True)
            diary.call("exception", lambda: outcome(work.exception()), show=True)
            diary.call("wait third", work.wait)
        diary.sleep_until(3)
        return [(entry.name, entry.outcome, round(entry.ended_ms / 1000, 2)) for entry in diary.entries]

    stories = in_group(body, 3, timeout_s=2)

    for rank, kind in ((0, "recv"), (2, "send")):
        late = timed_out(kind, 2000)
        assert stories[rank] == [
            ("wait(0.5)", "RuntimeError: Operation timed out!", 0.5),
            ("is_completed", "False", 0.5),
            ("is_success", "True", 0.5),
            ("exception", "None", 0.5),
            ("wait", late, 2.0),
            ("is_completed", "True", 2.0),
            ("is_success", "False", 2.0),
            ("exception", repr(late), 2.0),
            ("wait third", late, 2.0),
        ]


def test_a_work_that_was_given_up_can_still_succeed() -> None:
    def body(rank: int) -> tuple[str, bool, float, float]:
        dist.barrier()
        zero = now_ns()
        sleep_s(1.0 * (rank == 1))
        tensor, work = reduced(rank)
        first = "late" if rank == 1 else attempt(lambda: work.wait(timedelta(seconds=0.5)))
        return first, work.wait(), round((now_ns() - zero) / 1e9, 2), tensor[0].item()

    stories = in_group(body, 3, timeout_s=2)

    gave_up = ("RuntimeError: Operation timed out!", True, 1.0, 6.0)
    assert stories == [gave_up, ("late", True, 1.0, 6.0), gave_up]


def test_a_failed_work_s_future_raises_the_same_in_waiters_and_callbacks() -> None:
    def body(rank: int) -> list[str]:
        said: list[str] = []
        if rank == 0:
            future = reduced(rank)[1].get_future()
            future.add_done_callback(lambda done: said.append(attempt(done.value)))
            said.append(attempt(future.wait))
        sleep_s(2)
        return said

    assert in_group(body, 2, timeout_s=1)[0] == [timed_out("recv", 1000)] * 2


# -- futures -----------------------------------------------------------------------------------------------------------


def test_a_future_holds_the_outputs() -> None:
    def body(rank: int) -> tuple[bool, list[torch.Tensor]]:
        tensor, work = reduced(rank)
        future = work.get_future()
        held = future.wait()
        return held[0] is tensor or held[0].data_ptr() == tensor.data_ptr(), future.value()

    for same, held in in_group(body, 2):
        assert same
        assert torch.equal(held[0], torch.full((4,), 3.0))


def test_cxx_finds_the_tensors_of_a_future_as_without_a_world() -> None:
    one, two = torch.ones(1), torch.nn.Parameter(torch.ones(2))
    values: list[Any] = [[one], [one, one], [one, two], [], one, [[one], {"a": two}], (one,), [one, None], "text"]

    def found() -> list[list[int]]:
        return [[id(each) for each in future_values._extract_tensors(value)] for value in values]

    assert simdist.run(found, world_size=1).ranks[0].value == found()


def test_then_chains_pass_values_on() -> None:
    def body(rank: int) -> float:
        future = reduced(rank)[1].get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        shifted = doubled.then(lambda done: done.value() + 1)
        return float(shifted.wait()[0].item())

    assert in_group(body, 2) == [7.0, 7.0]


def test_then_on_a_future_that_is_done_runs_at_once() -> None:
    def body(rank: int) -> float:
        work = reduced(rank)[1]
        work.wait()
        return float(work.get_future().then(lambda done: done.value()[0][0]).wait().item())

    assert in_group(body, 2) == [3.0, 3.0]


def test_callbacks_run_as_the_rank_that_added_them() -> None:
    def body(rank: int) -> list[int]:
        ranks: list[int] = []
        sleep_s(0.1 * rank)
        future = reduced(rank)[1].get_future()
        future.add_done_callback(lambda _: ranks.append(dist.get_rank()))
        chained = future.then(lambda _: ranks.append(dist.get_rank()))
        chained.wait()
        return ranks

    assert in_group(body, 3) == [[0, 0], [1, 1], [2, 2]]


def test_a_callback_may_issue_the_next_collective() -> None:
    def body(rank: int) -> float:
        def again(done: Any) -> torch.Tensor:
            tensor: torch.Tensor = done.value()[0]
            dist.all_reduce(tensor)
            return tensor

        return float(reduced(rank)[1].get_future().then(again).wait()[0].item())

    assert in_group(body, 2) == [6.0, 6.0]


def test_wait_all_waits_for_every_future() -> None:
    def body(rank: int) -> list[float]:
        futures = [reduced(rank + index)[1].get_future() for index in range(3)]
        return [value[0][0].item() for value in torch.futures.wait_all(futures)]

    assert in_group(body, 2) == [[3, 5, 7]] * 2


def test_collect_all_takes_futures_of_the_rank_s_own() -> None:
    def body(rank: int) -> list[Any]:
        own: torch.futures.Future[Any] = torch.futures.Future()
        own.set_result("mine")
        joint = torch.futures.collect_all([own, reduced(rank)[1].get_future()])
        return [done.value() for done in joint.wait()]

    for mine, summed in in_group(body, 2):
        assert mine == "mine"
        assert summed[0][0].item() == 3.0


def test_a_plain_future_works_on_a_rank() -> None:
    def body(rank: int) -> int:
        future: torch.futures.Future[int] = torch.futures.Future()
        chained = future.then(lambda done: done.wait() + 1)
        future.set_result(rank)
        return chained.wait()

    assert in_group(body, 2) == [1, 2]


def completed_later(value: object, delay_s: float = 0.5) -> Any:
    """Return a plain future that another thread of the rank completes."""
    future: torch.futures.Future[Any] = torch.futures.Future()

    def complete() -> None:
        sleep_s(delay_s)
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)

    threading.Thread(target=complete).start()
    return future


def test_a_plain_future_that_a_thread_completes_is_waited_for() -> None:
    def body(rank: int) -> list[Any]:
        found = [completed_later(3).wait(), completed_later(3).then(lambda done: done.value() + 1).wait()]
        found.append(torch.futures.wait_all([completed_later(index, 0.3 - 0.1 * index) for index in range(3)]))
        joint = torch.futures.collect_all([completed_later(index, 0.1 + index) for index in range(2)])
        found.append([done.value() for done in joint.wait()])
        shared, seen = completed_later("both"), []
        threads = [threading.Thread(target=lambda: seen.append(shared.wait())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [*found, seen, attempt(lambda: completed_later(ValueError("no")).wait())]

    assert in_group(body, 1) == [[3, 4, [0, 1, 2], [0, 1], ["both", "both"], "ValueError: no"]]


def test_a_wait_for_a_plain_future_waits_for_no_other() -> None:
    def body(rank: int) -> tuple[float, float]:
        dist.barrier()
        zero = now_ns()
        sleep_s(2.0 * rank)
        _, work = reduced(rank)
        future = work.get_future()
        begin = now_ns()
        completed_later(rank).wait()
        took = now_ns() - begin
        future.wait()
        return round(took / 1e9, 3), round((now_ns() - zero) / 1e9)

    assert in_group(body, 2) == [(0.5, 2), (0.5, 2)]


def test_a_plain_future_that_nobody_completes_is_a_deadlock() -> None:
    def body() -> None:
        torch.futures.Future().wait()

    result = simdist.run(body, world_size=1)

    assert "rank 0, first to fail, at 0 ns, test_works.py" in str(result)
    assert "hangs for good in wait for a future" in str(result)


def test_an_unwaited_work_still_completes() -> None:
    def body(rank: int) -> float:
        tensor, _ = reduced(rank)
        sleep_s(1)
        return tensor[0].item()

    assert in_group(body, 2) == [3.0, 3.0]


def test_a_barrier_waits_for_what_the_rank_issued_before() -> None:
    def body(rank: int) -> tuple[float, float]:
        dist.barrier()
        zero = now_ns()
        tensor, _ = reduced(rank) if rank else (torch.zeros(4), None)
        if rank == 0:
            sleep_s(0.7)
            tensor, _ = reduced(rank)
        dist.barrier()
        return tensor[0].item(), round((now_ns() - zero) / 1e9, 2)

    assert in_group(body, 2) == [(3.0, 0.7)] * 2


# -- (q): the attributes of a work -------------------------------------------------------------------------------------


def two_of(call: str, rank: int) -> Any:
    parts = [ones(), ones()]
    root = {"gather": parts if rank == 0 else None, "scatter": parts if rank == 0 else None}
    table: dict[str, Any] = {
        "all_reduce": lambda: dist.all_reduce(ones(), async_op=True),
        "broadcast": lambda: dist.broadcast(ones(), 0, async_op=True),
        "reduce": lambda: dist.reduce(ones(), 0, async_op=True),
        "all_gather": lambda: dist.all_gather(parts, ones(), async_op=True),
        "gather": lambda: dist.gather(ones(), root["gather"], 0, async_op=True),
        "scatter": lambda: dist.scatter(ones(), root["scatter"], 0, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter(ones(), parts, async_op=True),
        "all_to_all_single": lambda: dist.all_to_all_single(ones(), ones(), async_op=True),
        "all_to_all": lambda: dist.all_to_all(parts, [ones(), ones()], async_op=True),
        "barrier": lambda: dist.barrier(async_op=True),
    }
    work = table[call]()
    assert work.wait() is True
    return work


SHAPES = {
    "all_reduce": "T T",
    "broadcast": "T T",
    "reduce": "T T",
    "all_gather": "TT TT",
    "gather": "TT -",
    "scatter": "T T",
    "all_to_all_single": "T T",
    "all_to_all": "TT TT",
    "barrier": "- -",
}


def shown(held: list[Any]) -> str:
    return "".join("T" if isinstance(one, torch.Tensor) and one.shape == (4,) else "?" for one in held) or "-"


@pytest.mark.parametrize("call", SHAPES)
def test_result_and_future_hold_the_flat_outputs(call: str) -> None:
    def body(rank: int) -> tuple[str, str, tuple[bool, bool, None]]:
        work = two_of(call, rank)
        flags = work.is_success(), work.is_completed(), work.exception()
        return shown(work.result()), shown(work.get_future().value()), flags

    results = in_group(body, 2)

    assert " ".join(result for result, _, _ in results) == SHAPES[call]
    assert [held for _, held, _ in results] == [result for result, _, _ in results]
    assert [flags for _, _, flags in results] == [(True, True, None)] * 2


def test_an_all_gather_into_one_tensor_holds_its_parts() -> None:
    def body(rank: int) -> str:
        work = dist.all_gather_into_tensor(ones(8), ones(), async_op=True)
        assert work is not None
        work.wait()
        return shown(work.get_future().value())

    assert in_group(body, 2) == ["TT", "TT"]


NO_FUTURE = "RuntimeError: Work::getFuture not implemented."
NO_RESULT = "RuntimeError: result() not implemented."


@pytest.mark.parametrize("call", ["reduce_scatter", "reduce_scatter_tensor"])
def test_a_reduce_scatter_has_neither_future_nor_result(call: str) -> None:
    def body(rank: int) -> list[Any]:
        if call == "reduce_scatter":
            work: Any = dist.reduce_scatter(ones(), [ones(), ones()], async_op=True)
        else:
            work = dist.reduce_scatter_tensor(ones(), ones(8), async_op=True)
        said = [attempt(work.get_future), work.wait(), attempt(work.get_future), attempt(work.result)]
        return [*said, work.is_success(), work.is_completed(), work.exception()]

    assert in_group(body, 2) == [[NO_FUTURE, True, NO_FUTURE, NO_RESULT, False, True, None]] * 2


def test_gloo_gives_no_result_of_a_work_that_is_not_done() -> None:
    def body(rank: int) -> list[str]:
        sleep_s(rank)
        work = dist.all_reduce(ones(), async_op=True)
        assert work is not None
        early = attempt(work.result)
        work.wait()
        return [early, shown(work.result())]

    undone = "RuntimeError: Work needs to be completed before calling result(). Should call wait() before result()."
    assert in_group(body, 2)[0] == [undone, "T"]


def test_a_message_has_neither_future_nor_result() -> None:
    def body(rank: int) -> list[Any]:
        work = dist.isend(ones(), 1) if rank == 0 else dist.irecv(ones(), 0)
        assert work is not None
        said = [attempt(work.get_future), work.wait(), attempt(work.get_future), attempt(work.result)]
        return [*said, work.is_success(), work.is_completed(), work.exception()]

    assert in_group(body, 2) == [[NO_FUTURE, True, NO_FUTURE, NO_RESULT, True, True, None]] * 2


def test_no_work_has_a_future_of_its_result() -> None:
    def body(rank: int) -> str:
        return attempt(two_of("all_reduce", rank).get_future_result)

    assert in_group(body, 2) == ["RuntimeError: Work::getFutureResult not implemented."] * 2


def test_a_receive_knows_its_source_and_others_do_not() -> None:
    def body(rank: int) -> str:
        if rank == 0:
            work = dist.isend(ones(), 1)
        else:
            work = dist.irecv(ones())
        assert work is not None
        work.wait()
        return str(work.source_rank()) if rank else attempt(work.source_rank)

    said = in_group(body, 2)

    refused = (
        "RuntimeError: sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call."
    )
    assert said[1] == "0"
    assert said[0] == refused
    assert in_group(lambda rank: attempt(two_of("all_reduce", rank).source_rank), 2) == [refused] * 2


def test_a_work_is_torch_s_work() -> None:
    def body(rank: int) -> bool:
        return isinstance(two_of("all_reduce", rank), dist.Work)

    assert in_group(body, 2) == [True, True]


def sequence_number() -> int:
    group: Any = dist.group.WORLD
    return int(group._get_sequence_number_for_group())


# Each collective counts one, a barrier one, a p2p call one on its rank; empty and refused ones as measured in (q).
def test_sequence_numbers_count_what_real_gloo_counts() -> None:
    def body(rank: int) -> list[int]:
        dist.barrier()
        numbers = [sequence_number()]

        def after(call: Any) -> None:
            attempt(call)
            numbers.append(sequence_number())

        after(lambda: dist.all_reduce(ones(0)))
        after(lambda: dist.all_reduce_coalesced([ones(), ones()]))
        after(lambda: dist.barrier())
        after(lambda: dist.all_reduce(ones(dtype=torch.int16)))
        after(lambda: dist.all_gather([ones()], ones()))
        after(lambda: dist.reduce_scatter(ones(), [ones() for _ in range(3)]))
        return numbers

    assert in_group(body, 3) == [[1, 2, 3, 4, 5, 5, 8]] * 3


def test_point_to_point_counts_on_its_own_ranks_only() -> None:
    def body(rank: int) -> int:
        if rank == 0:
            dist.send(ones(), 1)
        elif rank == 1:
            dist.recv(ones(), 0)
        return sequence_number()

    assert in_group(body, 3) == [1, 1, 0]


def test_a_monitored_barrier_counts_its_messages() -> None:
    def body(rank: int) -> int:
        dist.barrier()
        dist.monitored_barrier()
        return sequence_number()

    assert in_group(body, 3) == [5, 3, 3]


def test_the_sim_backend_reports_a_wait_that_nobody_ends_as_a_deadlock() -> None:
    def main() -> None:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            reduced(0)[1].wait()
        else:
            dist.recv(ones(), 0)

    result = simdist.run(main, world_size=2, backend="sim")

    assert result.deadlock is not None
    assert [rank.status for rank in result.ranks] == ["hung", "hung"]
