"""`simdist launch`: scripts run as under torchrun, on simulated nodes."""

from __future__ import annotations

import calendar
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simdist.cli import main
from tests.builds import NO_NCCL
from tests.warm import Interpreters

Launched = Callable[..., Result]

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
SHOWS = """
import os, sys, pickle
import torch.distributed as dist

class Here:
    pass

def main():
    dist.init_process_group("gloo")
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"]
    names += ["ROLE_NAME", "ROLE_WORLD_SIZE", "OMP_NUM_THREADS", "TORCHELASTIC_RESTART_COUNT"]
    names += ["TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_USE_AGENT_STORE"]
    here = type(pickle.loads(pickle.dumps(Here()))) is Here
    where = os.path.basename(__file__), os.path.basename(sys.argv[0]), sys.argv[1:]
    where = *where, sys.modules["__main__"].Here is Here
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, ([os.environ[name] for name in names], __name__, here, *where))
    if dist.get_rank() == 0:
        print(said)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""

TRAINS = """
import os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
import simdist

from tests.builds import NO_NCCL
from tests.warm import Interpreters

class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(float(index))

def main(path):
    dist.init_process_group("gloo")
    begin = torch.load(path) if os.path.exists(path) else 0
    for step in range(begin, 4):
        simdist.step(step)
        if step == begin:
            read = sum(DataLoader(Numbers(), num_workers=1, multiprocessing_context="spawn"))
        total = read.clone()
        dist.all_reduce(total)
        time.sleep(10)
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(step + 1, path + ".new")
            os.replace(path + ".new", path)
            print(step, int(total) // 6, "restart", os.environ["TORCHELASTIC_RESTART_COUNT"])
        dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    main(sys.argv[1])
"""

FAILS = """
import os, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("boom")
    time.sleep(60)

main()
"""


def test_a_script_finds_what_torchrun_sets(launched: Launched) -> None:
    result = launched(SHOWS, "--lr", "3", before=("--nnodes", "2", "--nproc-per-node=2", "--rdzv-backend=c10d"))

    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert eval(line) == [
        (
            [*map(str, (rank, rank % 2, 4, 2, rank // 2, 2, rank)), "default", "4", "1", "0", "0", SIGNALS, "True"],
            "__main__",
            True,
            "script.py",
            "script.py",
            ["--lr", "3"],
            True,
        )
        for rank in range(4)
    ]


def test_nodes_have_names_of_their_own(launched: Launched) -> None:
    text = "import os, socket\nprint(os.environ['RANK'], socket.gethostname(), socket.getfqdn())"
    result = launched(text, before=("--nnodes", "2", "--nproc-per-node=2"))

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"{rank} host{rank // 2} host{rank // 2}" for rank in range(4)]


# Behind -- even what torchrun takes for an option that is cut off.
@pytest.mark.parametrize(("before", "more"), [((), ()), (("--",), ("--logs", "x", "--", "--judge"))])
def test_what_stands_behind_the_script_is_the_scripts_own(
    before: tuple[str, ...], more: tuple[str, ...], launched: Launched
) -> None:
    words = ["--device=cpu", "--device", "cpu", "--dev", "--t", "--trace", "out", "--seed=3", *more]

    result = launched("import sys\nprint(sys.argv[1:])", *words, before=before)

    assert result.exit_code == 0, result.output
    assert str(words) in result.stdout


def test_a_module_runs_as_with_python_m(launched: Launched) -> None:
    by_name = launched(SHOWS, "x", before=("--nproc-per-node", "2", "-m"), script="script")
    by_path = launched(SHOWS, "x", before=("--nproc-per-node", "2"))

    assert by_name.exit_code == 0, by_name.output
    assert by_name.stdout == by_path.stdout


def test_workers_find_modules_beside_the_script_not_in_the_working_folder(
    tmp_path: Path, interpreters: Interpreters
) -> None:
    (tmp_path / "here.py").write_text("")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text("")
    script = "import importlib.util as found; print([found.find_spec(name) is not None for name in ('beside', 'here')])"
    (tmp_path / "scripts" / "script.py").write_text(script)

    words = [sys.executable, "-m", "simdist", "launch", "--nproc-per-node", "1", "--check-determinism"]
    done = interpreters.run([*words, "scripts/script.py"], cwd=tmp_path, checks=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "[True, False]\n"


@pytest.mark.real
@pytest.mark.parametrize("words", [("--nproc-per-node=2",), ("--standalone", "--nproc-per-node=2", "--role=trainer")])
def test_torchrun_sets_that(launched: Launched, words: tuple[str, ...]) -> None:
    simulated = launched(SHOWS, "--lr", "3", before=words)

    real = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "script.py", "--lr", "3"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )

    assert simulated.stdout == real.stdout


SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
script.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  host      : host0
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 1000)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 1000
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : host0
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 1001) 
  error_file: {file}
  traceback : Traceback (most recent call last):
"""  # noqa: W291  # torch's


def test_a_failed_job_ends_with_torchruns_summary(launched: Launched, tmp_path: Path) -> None:
    result = launched(FAILS, before=("--nproc-per-node", "2", "--log-dir", "logs"))

    assert result.exit_code == 1
    (file,) = tmp_path.glob("logs/*/attempt_0/1/error.json")
    assert SUMMARY.format(file=Path("logs") / file.relative_to(tmp_path / "logs")) in result.stderr
    assert "\n  ValueError: boom\n" in result.stderr
    assert "rank 1, first to fail, at 0 ns, script.py:8: raised ValueError: boom" in result.stderr
    assert result.stderr.splitlines()[-2:-1] == ["replay: simdist launch --nproc-per-node 2 --log-dir logs script.py"]


def faults(folder: Path, text: str) -> str:
    (folder / "faults.toml").write_text(f"[[faults]]\n{text}\n")
    return "--faults=faults.toml"


NODES = ("--nnodes=2:3", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=host0:29400")


def test_all_workers_start_again_when_one_dies(launched: Launched, tmp_path: Path) -> None:
    strike = faults(tmp_path, 'kind = "crash"\nrank = 1\nstep = 2')

    result = launched(TRAINS, "state.pt", before=("--nproc-per-node=2", "--max-restarts=1", strike))

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"{step} 2 restart {int(step >= 2)}" for step in range(4)]


def test_a_job_goes_on_without_a_lost_node_and_numbers_ranks_anew(launched: Launched, tmp_path: Path) -> None:
    strike = faults(tmp_path, 'kind = "host_crash"\nrank = 2\nstep = 2')

    result = launched(TRAINS, "state.pt", before=(*NODES, "--max-restarts=1", strike))

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == ["0 6 restart 0", "1 6 restart 0", *(f"{n} 4 restart 1" for n in range(2, 4))]
    assert "simdist: 4 ranks, 71." in result.stderr  # 20 s, 30 s of last call, 20 s


def test_a_node_that_comes_back_is_taken_in(launched: Launched, tmp_path: Path) -> None:
    strike = faults(tmp_path, 'kind = "host_crash"\nrank = 2\nstep = 2\ndown = "45s"')

    result = launched(TRAINS, "state.pt", before=(*NODES, "--max-restarts=1", strike))

    assert result.exit_code == 0, result.output
    counts = [line.split()[1:] for line in result.stdout.splitlines()]
    assert counts == [["6", "restart", "0"]] * 2 + [["4", "restart", "1"]] + [["6", "restart", "1"]]


@pytest.mark.parametrize(("rank", "least"), [(2, 3), (0, 1)], ids=["too few nodes", "the rendezvous is lost"])
def test_a_job_gives_up_when_no_round_can_complete(launched: Launched, tmp_path: Path, rank: int, least: int) -> None:
    strike = faults(tmp_path, f'kind = "host_crash"\nrank = {rank}\nstep = 1')
    before = (f"--nnodes={least}:3", *NODES[1:], "--max-restarts=3", strike)

    result = launched(TRAINS, "state.pt", before=before)

    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["0 6 restart 0"]
    assert "of virtual time, digest" in result.stderr.splitlines()[-1]


@pytest.mark.real  # it starts interpreters of its own
def test_files_and_the_comparison_are_those_of_run(launched: Launched, tmp_path: Path) -> None:
    options = ("--trace=trace.json", "--events=events.jsonl", "--timeline=timeline.svg", "--check-determinism")

    result = launched(SHOWS, before=("--nproc-per-node=2", "--seed=3", *options))

    assert result.exit_code == 0, result.output
    assert "determinism: the same digest in a fresh process with PYTHONHASHSEED=" in result.stderr
    assert all((tmp_path / name).stat().st_size > 500 for name in ("trace.json", "events.jsonl", "timeline.svg"))


@pytest.mark.real  # it starts interpreters of its own
def test_a_script_that_prints_where_its_logs_are_repeats_itself(launched: Launched, tmp_path: Path) -> None:
    text = "import os; print(os.environ['TORCHELASTIC_ERROR_FILE'])"
    options = ("--nproc-per-node=2", "--rdzv-id=job", "--log-dir=logs", "--redirects=3", "--check-determinism")

    results = [launched(text, before=options) for _ in range(2)]  # the second finds the folder of the first there

    assert [result.exit_code for result in results] == [0, 0], [result.output for result in results]
    folders = list((tmp_path / "logs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert (folder / "attempt_0" / "1" / "stdout.log").read_text() == f"{folder}/attempt_0/1/error.json\n"


def test_a_script_that_prints_its_environment_is_the_same_in_every_run(
    launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # another run on this machine may have the usual name
    text = "import os; print(sorted(os.environ.items()))"

    first, again = (launched(text, before=("--nproc-per-node=2",)) for _ in range(2))

    assert "TORCHELASTIC_ERROR_FILE" in first.stdout
    assert first.stdout == again.stdout
    assert first.stderr == again.stderr


def test_pytest_on_ranks_takes_warnings_for_errors(tmp_path: Path, interpreters: Interpreters) -> None:
    text = """
import os, time

def test_it(capfd):
    rank = int(os.environ["RANK"])
    time.sleep(0.001 * rank)
    os.system(f"echo program {rank}")
    assert capfd.readouterr().out == f"program {rank}\\n"
"""
    (tmp_path / "test_it.py").write_text(text)
    of_simdist = "error:Module already imported so cannot be rewritten; simdist:pytest.PytestAssertRewriteWarning"
    pytests = ("-m", "pytest", "-q", "-W", of_simdist, "-p", "no:cacheprovider", "test_it.py")

    words = [sys.executable, "-m", "simdist", "launch", "--nproc-per-node", "2", *pytests]
    done = interpreters.run(words, cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 2
    assert done.stderr.splitlines()[-1].startswith("simdist: 2 ranks, ")


def test_everything_that_is_wrong_is_reported_at_once(launched: Launched, tmp_path: Path) -> None:
    strike = faults(tmp_path, 'kind = "crash"\nrank = 7\nstpe = 2')
    words = (
        "--nnodes=2:1",
        "--nproc-per-node=gpu",
        "--no-python",
        "--tee=both",
        "--numa-binding=node",
        "--seed=-1",
        "--node-rank=1",
        "--rdzv-backend=foo",
        "--rdzv-conf=timeout=9,last_call_timeout",
        strike,
    )

    result = launched(SHOWS, before=words, script="nothing.py")

    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "simdist launch: 11 problems",
        "  --no-python: not supported: ranks are simulated in Python; run the script itself",
        "  --numa-binding: not supported: a simulated node has no processors to bind to; leave it out",
        "  --nnodes: expected 0 < MIN <= MAX, found '2:1'",
        "  --node-rank: all nodes are simulated here, and started by one command; leave it out",
        "  --nproc-per-node: the nodes have no GPUs; say how many each has with --devices",
        "  --seed: -1 is too small; the least is 0",
        "  nothing.py: no such file; expected a Python script, or a module with -m",
        "  --rdzv-backend: expected one of c10d, etcd, etcd-v2, static, found 'foo'",
        "  --rdzv-conf: expected KEY=VALUE, several with commas, found 'timeout=9,last_call_timeout'",
        "  --faults faults.toml: faults[0].stpe: unknown key; did you mean 'step'?",
        "  --tee: expected 0, 1 (stdout), 2 (stderr) or 3 (both), or these by local rank, such as 0:3,1:1, found "
        "'both'",
    ]


def test_an_unknown_option_is_reported_in_one_line(launched: Launched) -> None:
    result = launched(SHOWS, before=("--nproc-per-node=2", "--frobnicate"))

    assert result.exit_code == 2
    assert result.stderr.startswith("simdist launch: 1 problem\n")
    assert len(result.stderr.splitlines()) == 2
    assert "--frobnicate; see" in result.stderr
    assert "--judges; did you mean '--judge'?; see" in launched(SHOWS, before=("--judges",)).stderr


@pytest.mark.parametrize("words", [("--devices=9",), ("--nproc-per-node=9", "--devices=ranks")])
def test_more_devices_than_a_host_can_have_are_reported_by_the_option(
    launched: Launched, words: tuple[str, ...]
) -> None:
    result = launched(SHOWS, before=words)

    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "simdist launch: 1 problem",
        "  --devices: 9 is too large; the most is 8, for torch's device guard knows no more",
    ]


TIMES = """
import torch

a = torch.ones(512, 512, device="cuda")
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
a @ a
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end))
"""


def test_devices_compute_as_fast_as_the_model_that_is_named(launched: Launched) -> None:
    one_ms = 2 * 512**3 / 67e12 * 1e3

    result = launched(TIMES, before=("--devices=1", "--device-model=h100"))
    wrong = launched(TIMES, before=("--device-model=h10",))

    assert result.exit_code == 0, result.output
    assert float(result.stdout.split()[0]) == pytest.approx(one_ms, abs=1e-6)
    assert wrong.exit_code == 2
    assert wrong.stderr.splitlines()[1:] == [
        "  --device-model: unknown device 'h10'; did you mean 'h100'?",
        "  --device-model: the nodes have no devices; say --devices",
    ]


def test_programs_take_the_virtual_time_that_is_said(launched: Launched) -> None:
    script = "import subprocess, time\nsubprocess.run(['true'])\nprint(round(time.monotonic(), 6))"

    result = launched(script, before=("--program-time", "90s"))
    wrong = launched(script, before=("--program-time=long",))

    assert (result.exit_code, result.stdout.split()) == (0, ["90.0"]), result.output
    assert wrong.exit_code == 2
    assert wrong.stderr.splitlines()[-1].strip().startswith("--program-time: 'long' is no duration; write '3ms'")


def test_workers_share_a_module_that_is_named(launched: Launched, tmp_path: Path) -> None:
    (tmp_path / "imported_once.py").write_text("SEEN = []")
    script = "import imported_once, os\nimported_once.SEEN.append(os.environ['RANK'])\nprint(imported_once.SEEN)"

    shared = launched(script, before=("--nproc-per-node=2", "--share", "imported_once"))
    own = launched(script, before=("--nproc-per-node=2",))

    assert shared.stdout.splitlines() == ["['0']", "['0', '1']"], shared.output
    assert own.stdout.splitlines() == ["['0']", "['1']"], own.output


def test_workers_import_an_installed_module_that_is_named(launched: Launched) -> None:
    script = "import networkx\nprint(id(networkx))"

    shared = launched(script, before=("--nproc-per-node=2",))
    own = launched(script, before=("--nproc-per-node=2", "--isolate", "networkx"))

    assert len(set(shared.stdout.splitlines())) == 1, shared.output
    assert len(set(own.stdout.splitlines())) == 2, own.output


@pytest.mark.real  # it waits in real time
def test_what_workers_may_wait_for_in_real_time_is_said(launched: Launched) -> None:
    script = "import subprocess\nprint(subprocess.run(['sleep', '1'], capture_output=True).returncode)"

    short = launched(script, before=("--stall-s=0.2",))
    longer = launched(script, before=("--stall-s=20",))
    wrong = launched(script, before=("--stall-s=0", "--share=no.such name", "--isolate=a.b"))

    assert "(of simdist launch --stall-s), in real seconds; it was 0.2" in short.output
    assert (longer.exit_code, longer.stdout) == (0, "0\n"), longer.output
    assert wrong.exit_code == 2
    options = [line.strip().partition(" ")[0] for line in wrong.stderr.splitlines()[1:]]
    assert options == ["--isolate:", "--share:", "--stall-s:"]


def test_what_workers_leave_in_state_that_they_share_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import calendar\ncalendar.setfirstweekday(6)\n")

    result = CliRunner().invoke(main, ["launch", "--nproc-per-node=2", str(script)])
    calendar.setfirstweekday(calendar.MONDAY)

    assert result.exit_code == 0, result.output
    assert "simdist: ranks left in state that they share: calendar.c._firstweekday: set\n" in result.stderr


COUNTS = """
import os
import torch

rank = int(os.environ["RANK"])
print(rank, torch.cuda.is_available(), torch.cuda.device_count())
"""

INSISTS = """
import torch.distributed as dist

dist.init_process_group("nccl")
"""


@pytest.mark.filterwarnings("ignore:Attempted to get default timeout for nccl:UserWarning")
def test_devices_are_as_many_as_workers_at_most_none_unless_asked_for(launched: Launched) -> None:
    asked = launched(COUNTS, before=("--nproc-per-node=3", "--devices=ranks"))
    by_default = launched(COUNTS, before=("--nproc-per-node=3",))
    insists = launched(INSISTS, before=("--nproc-per-node=2",))

    assert sorted(asked.stdout.splitlines()[:3]) == ["0 True 3", "1 True 3", "2 True 3"]
    assert sorted(by_default.stdout.splitlines()[:3]) == ["0 False 0", "1 False 0", "2 False 0"]
    assert insists.exit_code == 1
    assert NO_NCCL in insists.stderr
    assert "this world has no devices; simdist launch --devices ranks gives each worker a virtual one" in insists.stderr


def test_as_many_devices_as_workers_wants_to_know_how_many_those_are(launched: Launched) -> None:
    result = launched(COUNTS, before=("--nproc-per-node=gpu", "--devices=ranks"))

    assert result.exit_code == 2
    assert result.stderr.splitlines()[1:] == [
        "  --nproc-per-node: the nodes have no GPUs; say how many each has with --devices"
    ]


SETS_A_LEVEL = """
import os
{first}
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
import torch.distributed as dist
import torch.multiprocessing as mp

def show(index):
    print(dist.get_debug_level().name)

if __name__ == "__main__":
    show(0)
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
    for method in ("spawn", "fork"):
        mp.start_processes(show, nprocs=1, start_method=method)
    show(0)
"""


@pytest.mark.parametrize(
    ("first", "levels"),
    [
        ("", ["DETAIL"] * 4),
        ("import torch", ["OFF", "INFO", "OFF", "OFF"]),
        ("from torch.nn import Linear", ["OFF", "INFO", "OFF", "OFF"]),
        ("if __name__ == '__main__': import torch", ["OFF", "DETAIL", "OFF", "OFF"]),
    ],
)
def test_a_debug_level_set_before_the_import_of_torch_counts(first: str, levels: list[str], launched: Launched) -> None:
    result = launched(SETS_A_LEVEL.format(first=first), before=("--launcher", "python"))

    assert result.exit_code == 0, result.output
    assert result.stdout.split() == levels
