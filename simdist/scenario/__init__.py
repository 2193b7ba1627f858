"""Scenarios: a TOML file becomes a checked, frozen plan; the plan becomes a run; the run is judged.

    file -> `_reader` (TOML, `--set`) -> `_schema` (pydantic, this package only) -> `_loader` -> `Plan`
    Plan -> `run_scenario` -> RunResult -> `_oracles` -> `ScenarioReport`

All problems of a file are collected and raised once, as one `ScenarioError` in the words of the file. A plan holds
plain data: the workload is imported afresh for each run, from the scenario's own folder, and forgotten after it. Open
`_schema.py` for the keys of a file, `_oracles.py` for the expectations, `_runner.py` for how a run is done.
"""

from simdist.scenario._determinism import check_plan
from simdist.scenario._equality import difference
from simdist.scenario._loader import load, load_faults
from simdist.scenario._oracles import judge_real
from simdist.scenario._plan import Expectations, ExpectedException, Plan, Verdict, Workload
from simdist.scenario._runner import ScenarioReport, alone, run_scenario
from simdist.scenario._state import state_of
from simdist.scenario._steps import lost_steps, lost_words
from simdist.scenario._struck import fault_text, simulated, undisturbed
from simdist.scenario._training import judge_training
from simdist.scenario._workload import fill, filled_faults, import_workload, importable
from simdist.scenario._written import scenario_text
from simdist.values import format_duration, parse_bandwidth, parse_duration, rank_text, without_source

__all__ = [
    "Expectations",
    "ExpectedException",
    "Plan",
    "ScenarioReport",
    "Verdict",
    "Workload",
    "alone",
    "check_plan",
    "difference",
    "fault_text",
    "fill",
    "filled_faults",
    "format_duration",
    "import_workload",
    "importable",
    "judge_real",
    "judge_training",
    "load",
    "load_faults",
    "lost_steps",
    "lost_words",
    "parse_bandwidth",
    "parse_duration",
    "rank_text",
    "run_scenario",
    "scenario_text",
    "simulated",
    "state_of",
    "undisturbed",
    "without_source",
]
