"""Makes a plan of a file: every section is checked on its own, all problems are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from simdist import faults
from simdist.errors import ScenarioError, SimdistError
from simdist.result import Status
from simdist.scenario._calibration import CalibrationError, calibrated
from simdist.scenario._fault_tables import FaultTables
from simdist.scenario._own_judges import own_judges_importable
from simdist.scenario._plan import Expectations, ExpectedException, Plan, Workload
from simdist.scenario._reader import Table, apply_overrides, read
from simdist.scenario._schema import (
    DISK_SECTION,
    ENV,
    HEADER,
    RANK_RANGES,
    SECTIONS,
    Expect,
    Problem,
    Target,
    check,
    check_spec,
    cluster_keys,
    cluster_section,
    model_spec,
    topology_spec,
)
from simdist.scenario._workload import WorkloadError, import_workload, importable
from simdist.settings import SETTINGS, unmoved_problems
from simdist.values import brief, found, guess_or_list

if TYPE_CHECKING:
    from simdist.settings import CheckedSettings

__all__ = ["load", "load_faults"]

_T = TypeVar("_T")


def load(source: str, *, overrides: Sequence[str] = (), import_target: bool = True) -> Plan:
    """Return the plan of the scenario file `source`; each override "key.path=value" replaces the file's value.

    Unless `import_target` is False, the workload is imported to check that this works, and forgotten again.

    Raises:
        ScenarioError: names all problems of the file.
    """
    problems: list[Problem] = []
    table = read(source, problems)
    if table is None:
        # An override may have problems of its own; against an empty table only its form is checked.
        apply_overrides({}, overrides, problems)
        raise ScenarioError(source, [str(problem) for problem in problems])
    set_paths = apply_overrides(table, overrides, problems)
    plan = _Loader(source, table, problems).plan(tuple(overrides), import_target)
    if plan is None or problems:
        raise ScenarioError(source, [_line(problem, set_paths) for problem in problems])
    return plan


def load_faults(source: str, world_size: int | None, max_restarts: int) -> tuple[faults.Fault, ...]:
    """Return the faults of a TOML file that has only `[[faults]]`, for a world of that size.

    Raises:
        ScenarioError: names all problems of the file.
    """
    problems: list[Problem] = []
    table = read(source, problems)
    found_faults: tuple[faults.Fault, ...] = ()
    if table is not None:
        problems += [
            Problem((key,), "unknown key; a file of faults has [[faults]] only") for key in table if key != "faults"
        ]
        about = {} if world_size is None else {"world_size": world_size}
        loader = _Loader(source, {"faults": table.get("faults", []), "max_restarts": max_restarts, **about}, problems)
        found_faults = loader.struck_by(has_devices=None)
    if problems:
        raise ScenarioError(source, [str(problem) for problem in problems])
    return found_faults


def _line(problem: Problem, set_paths: Iterable[Sequence[str | int]]) -> str:
    from_option = any(path and tuple(problem.path[: len(path)]) == tuple(path) for path in set_paths)
    return f"--set {problem}" if from_option else str(problem)


class _Loader:
    """Checks one raw table; each method returns its part of the plan and appends to `problems`."""

    def __init__(self, source: str, table: Table, problems: list[Problem]) -> None:
        self.source = source
        self.table = table
        self.problems = problems
        # The world's size, if it is valid, to check ranks even when other keys are wrong.
        self.world_size: int | None = check_spec(SETTINGS["world_size"], table.get("world_size"), (), [])
        self.last_life: int | None = check_spec(SETTINGS["max_restarts"], table.get("max_restarts", 0), (), [])

    def plan(self, overrides: tuple[str, ...], import_target: bool) -> Plan | None:
        """Return the plan, or None if there are problems."""
        with own_judges_importable(self.source, self.table.get("judges")):
            top = check(HEADER, {k: v for k, v in self.table.items() if k not in SECTIONS}, (), self.problems)
            for key, text in () if top is None else unmoved_problems(cast("CheckedSettings", dict(top))):
                self._problem((key,), text)
        workload = self._workload(import_target)
        cluster = {**self._cluster(), **self._models()}
        disk = self._disk()
        env = check_spec(ENV, self.table.get("env", {}), ("env",), self.problems)
        struck_by = self.struck_by(has_devices=self._has_devices())
        expect = self._expect()
        if top is None or workload is None or env is None or expect is None or self.problems:
            return None
        header = dict(top)
        return Plan(
            source=self.source,
            program_ns=header.pop("program_time"),
            **header,
            workload=workload,
            cluster=cluster,
            disk=disk,
            env=env,
            faults=struck_by,
            expect=expect,
            overrides=overrides,
        )

    def _workload(self, import_target: bool) -> Workload | None:
        if "workload" not in self.table:
            self._problem(("workload",), "missing; it has no default: say target = 'module:function'")
            return None
        section = check(Target, self.table["workload"], ("workload",), self.problems)
        raw = self.table["workload"]
        if section is None:  # the target may be bad, too
            target = raw.get("target") if isinstance(raw, dict) else None
            section = Target(target=target) if isinstance(target, str) else None
            if section is None:
                return None
        args, kwargs = tuple(section.args), dict(section.kwargs)
        folder = (Path(self.source).resolve().parent / section.folder).resolve()
        if not folder.is_dir():
            self._problem(("workload", "folder"), f"no such folder: {brief(str(folder))}")
            return None
        workload = Workload(target=section.target, folder=folder, args=args, kwargs=kwargs)
        if import_target:
            try:
                with importable(workload.folder, workload.target):
                    import_workload(workload)
            except WorkloadError as error:
                # Without the section's own args and kwargs it can't be checked whether they fit.
                if error.key == "target" or not any(problem.path[:1] == ("workload",) for problem in self.problems):
                    self._problem(("workload", error.key), error.text)
        return workload

    def _cluster(self) -> Mapping[str, Any]:
        raw = self.table.get("cluster")
        if raw is None:
            return {}
        named = raw.get("topology", "uniform") if isinstance(raw, dict) else "uniform"
        topology = check_spec(topology_spec(), named, ("cluster", "topology"), self.problems)
        if topology is None:
            return {}
        section = check(cluster_section(topology), raw, ("cluster",), self.problems)
        if section is None:
            return {}
        said = dict(section)
        keys = cluster_keys(topology)
        arguments: dict[str, Any] = {name: said[key] for key, name in keys.items() if said[key] is not None}
        calibration = said["calibration"]
        if calibration is not None and self.world_size is not None:
            try:
                path = Path(self.source).resolve().parent / calibration
                arguments = calibrated(path, self.world_size) | arguments
            except CalibrationError as error:
                self._problem(("cluster", "calibration"), str(error))
        if topology != "uniform":
            arguments = {"topology": topology, **arguments}
        if self.world_size is not None:
            if arguments.get("hosts", 1) > self.world_size:
                text = f"{arguments['hosts']} hosts for {self.world_size} ranks; a host has at least one"
                self._problem(("cluster", "hosts"), text)
                return {}
            self._make_cluster(self.world_size, topology, arguments)
        return arguments

    def _models(self) -> Mapping[str, object]:
        """Return the models of devices, of NCCL, and of jitter."""
        return {
            **self._model("device", "device_model"),
            **self._model("nccl", "nccl"),
            **self._model("jitter", "jitter"),
        }

    def _model(self, key: str, setting: str) -> Mapping[str, object]:
        raw = self.table.get(key)
        if raw is None:
            return {}
        if not isinstance(raw, dict):
            self._problem((key,), f"expected a table, found {found(raw)}")
            return {}
        model = check_spec(model_spec(setting), raw, (key,), self.problems)
        if key != "jitter" and not self._has_devices():
            self._problem((key,), "the world has no devices; say devices_per_host in [cluster]")
        return {} if model is None else {setting: model}

    def _has_devices(self) -> bool:
        cluster = self.table.get("cluster")
        return self.table.get("backend") == "nccl" or (
            isinstance(cluster, dict) and bool(cluster.get("devices_per_host"))
        )

    def _has_local_disks(self) -> bool:
        disk = self.table.get("disk")
        return isinstance(disk, dict) and disk.get("local") is True

    def _disk(self) -> Mapping[str, object] | None:
        if "disk" not in self.table:
            return None
        section = check(DISK_SECTION, self.table["disk"], ("disk",), self.problems)
        if section is None:
            return None
        said = dict(section)
        names = {"latency": "latency_ns", "names_late": "names_late_ns"}
        return {names.get(key, key): value for key, value in said.items()}

    def _make_cluster(self, world_size: int, topology: str, arguments: Mapping[str, Any]) -> None:
        from simdist import cluster

        settings = {name: value for name, value in arguments.items() if name != "topology"}
        key_of = {name: key for key, name in cluster_keys(topology).items()}
        problems = cluster.topology_problems(topology, world_size, settings)
        for name, text in problems:
            self._problem(("cluster", key_of.get(name, name)), text)
        if problems:
            return
        try:
            cluster.make(world_size, **arguments)
        except SimdistError as error:
            self._problem(("cluster",), str(error))

    def struck_by(self, *, has_devices: bool | None) -> tuple[faults.Fault, ...]:
        """Return the faults of the file, checked against world size and restarts."""
        raw = self.table.get("faults", [])
        if not isinstance(raw, list):
            self._problem(("faults",), f"expected a list of tables, [[faults]], found {found(raw)}")
            return ()
        about = {
            "has_disk": "disk" in self.table,
            "has_local_disks": self._has_local_disks(),
            "has_devices": has_devices,
            "moves_payloads": self.table.get("values") != "shapes",
        }
        folder = Path(self.source).resolve().parent
        return FaultTables(raw, folder, self.world_size, self.last_life, about).read(self.problems)

    def _expect(self) -> Expectations | None:
        section = check(Expect, self.table.get("expect", {}), ("expect",), self.problems)
        if section is None:
            self._ranks_of_a_bad_expect()
            return None
        for name, wanted in section.exception.items():
            self._exception(name, wanted.pattern, wanted)
        low, high = section.min_virtual_time, section.max_virtual_time
        if low is not None and high is not None and low > high:
            self._problem(("expect", "min_virtual_time"), "is later than max_virtual_time")
        exceptions = self._by_rank("exception", section.exception)
        outcomes = self._by_rank("outcomes", section.outcomes or {})
        if self.world_size is None:
            return None
        default: dict[int, Status] = {r: "raised" if r in exceptions else "returned" for r in range(self.world_size)}
        return Expectations(
            outcomes=tuple((default | outcomes).values()),
            exceptions={
                rank: ExpectedException(type=e.type, message=e.message, pattern=e.pattern)
                for rank, e in sorted(exceptions.items())
            },
            restarts=section.restarts,
            equal_values=_optional_tuple(section.equal_values),
            same_as_without_faults=_optional_tuple(section.same_as_without_faults),
            min_values=section.min_values,
            max_values=section.max_values,
            checkpoints=tuple(section.checkpoint),
            deadlock=section.deadlock,
            faults_strike=section.faults_strike,
            min_virtual_time_ns=section.min_virtual_time,
            max_virtual_time_ns=section.max_virtual_time,
            max_events=section.max_events,
            max_steps_lost=section.max_steps_lost,
            equal_states=section.equal_states,
            same_states_as_without_faults=section.same_states_as_without_faults,
            same_as_one_rank=_optional_tuple(section.same_as_one_rank),
            samples_once=section.samples_once,
            max_files=section.max_files,
            no_late_writes=section.no_late_writes,
            findings=self._judges_of(section.findings),
        )

    def _judges_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the judges that are expected to find something; they must be among those of the scenario."""
        if not names:
            return ()
        from simdist.judges import names_of  # which scenarios without judges do not need

        asked = self.table.get("judges", False)
        with own_judges_importable(self.source, asked):
            known = names_of(asked if isinstance(asked, list) else asked is True or ())
        for index, name in enumerate(names):
            if name not in known:
                text = f"{brief(name)} is no judge of this scenario{guess_or_list(name, known) if known else ''}"
                self._problem(("expect", "findings", index), text)
        return tuple(names)

    def _exception(self, name: str, pattern: str | None, wanted: Any) -> None:
        if wanted.type is None and wanted.message is None and pattern is None:
            self._problem(("expect", "exception", name), "is empty; give type, message or pattern")
        if pattern is not None:
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:  # the last two: too deep, too large a count
                reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
                self._problem(("expect", "exception", name, "pattern"), f"{brief(pattern)} is no regex: {reason}")

    def _by_rank(self, key: str, entries: Mapping[str, _T]) -> dict[int, _T]:
        """Return `entries` by rank; "" stands for every rank, "0", "1-3" and "0, 2-3" for these ranks."""
        result: dict[int, _T] = {}
        for text, value in entries.items():
            for rank in self._ranks(key, text):
                if rank in result:
                    self._problem(("expect", key, text), f"rank {rank} is named twice")
                result[rank] = value
        return result

    def _ranks(self, key: str, text: str) -> Sequence[int]:
        size = self.world_size
        if text == "":
            return range(size or 0)
        if not RANK_RANGES.fullmatch(text):
            self._problem(("expect", key, text), 'expected ranks as the key, such as "0" or "1-3"')
            return ()
        ranks: list[int] = []
        for part in text.split(","):
            first, _, last = part.strip().partition("-")
            low, high = int(first), int(last or first)
            if high < low:
                self._problem(("expect", key, text), f"{part.strip()} is a descending range")
            elif size is not None and high >= size:
                self._problem(("expect", key, text), f"rank {high} is outside the world of {size} ranks")
            elif size is not None:
                ranks += range(low, high + 1)
        return ranks

    def _ranks_of_a_bad_expect(self) -> None:
        raw = self.table.get("expect")
        for key in ("outcomes", "exception"):
            entries = raw.get(key) if isinstance(raw, dict) else None
            # A table without any rank among its keys may be a single exception.
            if isinstance(entries, dict) and any(RANK_RANGES.fullmatch(name) for name in entries):
                self._by_rank(key, entries)

    def _problem(self, path: Sequence[str | int], text: str) -> None:
        self.problems.append(Problem(tuple(path), text))


def _optional_tuple(keys: list[str] | None) -> tuple[str, ...] | None:
    return None if keys is None else tuple(keys)
