"""`simdist doctor`: features that work with this Python, this torch and this machine, and how to enable the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from simdist.cli._console import marks, page
from simdist.cli._doctor_probes import ask
from simdist.cli._table import plain_table
from simdist.inside import COMPLETE, PYTHONS, TRIED

__all__ = ["Feature", "examine"]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of simdist: on, or off for a reason."""

    name: str
    why_off: str = ""  # empty: it is on
    turned_on_by: str = ""  # a sentence, if it is off

    @property
    def is_on(self) -> bool:
        """True if the feature works here."""
        return not self.why_off


def examine(*, as_json: bool) -> int:
    """Print the page, or the JSON; return 0 if ranks run here, else 1."""
    facts, features = _facts(), _features()
    works = features[0].is_on
    if as_json:
        click.echo(json.dumps(_as_data(facts, features, works), indent=2))
    else:
        _print(facts, features, works)
    return 0 if works else 1


def _as_data(facts: dict[str, str], features: list[Feature], works: bool) -> dict[str, object]:
    reported = [
        {"name": each.name, "on": each.is_on, "why_off": each.why_off, "turned_on_by": each.turned_on_by}
        for each in features
    ]
    return {"ok": works, "facts": facts, "features": reported}


def _print(facts: dict[str, str], features: list[Feature], works: bool) -> None:
    good, bad = marks(sys.stdout.encoding)
    about, able = plain_table("", ""), plain_table("", "", "")
    for name, reported in facts.items():
        about.add_row(name, reported)
    for each in features:
        able.add_row(good if each.is_on else bad, each.name, "on" if each.is_on else _why(each))
    with page() as out:
        out.print(about)
        out.print()
        out.print(able)
        out.print()
        out.print("simulated ranks run here" if works else "simulated ranks do not run here")


def _why(feature: Feature) -> str:
    return f"off: {feature.why_off}" + (f"\n{feature.turned_on_by}" if feature.turned_on_by else "")


def _facts() -> dict[str, str]:
    from simdist.kernel import why_not_one_core

    return {
        "simdist": importlib.metadata.version("simdist"),
        "Python": _python(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "torch": _torch(),
        "compiler": _compiler(),
        "TUN": "/dev/net/tun is there, for faults of links on real processes"
        if Path("/dev/net/tun").exists()
        else "none: there is no /dev/net/tun",
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        "batch scheduling": why_not_one_core() or "allowed, for fast hand-offs between ranks",
        "namespaces": _namespaces() or "allowed, with a network and a TUN device of their own",
    }


def _python() -> str:
    number = platform.python_version()
    tried = ", ".join(PYTHONS)
    known = number.rpartition(".")[0] in PYTHONS
    reported = "tried" if known else f"not among the versions that simdist was tried on: {tried}"
    return f"{number} ({platform.python_implementation()}), {reported}"


def _torch() -> str:
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        return f"does not import: {type(error).__name__}: {error}"
    version = str(torch.__version__)
    build = "CPU" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"
    seen = TRIED.get(version.partition("+")[0])
    reported = f"tried with {seen}" if seen else f"not among the versions that simdist was tried on: {', '.join(TRIED)}"
    return f"{version}, built for {build}, {reported}"


def _compiler() -> str:
    try:
        from simdist.device import compiler

        return compiler() or "none: there is no g++"
    except Exception as error:  # torch is missing
        return f"not looked for: {type(error).__name__}: {error}"


def _namespaces() -> str:
    from simdist.hardware import why_no_namespaces

    return why_no_namespaces()


def _features() -> list[Feature]:
    from simdist.kernel import why_not_one_core

    devices = _virtual_devices()
    return [
        Feature(
            "simulated ranks",
            _answer(lambda: ask("ranks")),
            f"Take a version of torch that simdist was tried on: {', '.join(TRIED)}.",
        ),
        Feature(
            "fast hand-offs: one core, batch scheduling",
            _answer(why_not_one_core),
            "Linux has them, where neither a container nor a policy refuses them; results are the same without.",
        ),
        Feature(
            "private parts of Python and torch that simdist uses, all as expected",
            _answer(lambda: ask("inside")),
            f"The rest works. These versions of torch have all of it: {', '.join(COMPLETE)}.",
        ),
        Feature(
            "native folds of collectives",
            _answer(_why_no_native_folds),
            "Installing simdist builds them, with a C++ compiler and the headers of Python, on Linux and macOS (in a "
            "checkout: pip install -e .); the folds in Python do the same, slower.",
        ),
        devices,
        _compiled_kernels(devices),
        Feature(
            "real runs over Gloo",
            _answer(lambda: _real("gloo", 2)),
            "Install a torch that is built with Gloo.",
        ),
        Feature(
            "real runs over NCCL",
            _answer(lambda: _real("nccl", 2)),
            "A torch built for CUDA and a GPU for each rank turn them on.",
        ),
        Feature(
            "faults of links in real runs",
            _answer(_namespaces),
            "Linux, root (a container with all its rights) and /dev/net/tun turn them on.",
        ),
        Feature(
            "timelines as pictures",
            "" if importlib.util.find_spec("matplotlib") else "matplotlib is not installed",
            "Install it: pip install 'simdist[plot]'.",
        ),
        Feature(
            "searches on a Dask cluster",
            "" if importlib.util.find_spec("distributed") else "Dask is not installed",
            "Install it, there and here: pip install 'simdist[cluster]'.",
        ),
    ]


def _why_no_native_folds() -> str:
    from simdist.native import VARIABLE, why_not_buildable, why_off

    why = why_off()
    missing = why_not_buildable() if why and os.environ.get(VARIABLE) != "0" else ""
    return f"{why}, and {missing}" if missing else why


def _virtual_devices() -> Feature:
    return Feature(
        "virtual CUDA devices",
        _answer(lambda: ask("devices")),
        "A torch that simdist was tried on, built for the CPU or for CUDA, has them where no GPU is in use: "
        f"{', '.join(TRIED)}.",
    )


def _compiled_kernels(devices: Feature) -> Feature:
    name = "kernels of virtual devices in C++"
    if not devices.is_on:
        return Feature(name, "there are no virtual devices", "The lines above say what turns these on.")

    def why_none() -> str:
        from simdist.device import built_kernels, compiler

        if built_kernels().exists():
            return ""
        return "they are not built" if compiler() else "they are not built, and there is no g++"

    return Feature(
        name,
        _answer(why_none),
        "simdist build-devices builds them, with g++; the kernels in Python do the same, slower.",
    )


def _real(backend: str, world_size: int) -> str:
    from simdist.hardware import Nodes, unavailable

    return unavailable(backend, world_size, Nodes())


def _answer(question: Callable[[], str]) -> str:
    """Return the question's answer; an error that it raises is a reason, too."""
    try:
        return question()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
