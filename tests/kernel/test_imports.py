from __future__ import annotations

import subprocess
import sys


def modules_after(statement: str, *, blocked: tuple[str, ...] = ()) -> set[str]:
    """Return the modules of a fresh interpreter after `statement`, with some imports refused."""
    code = "\n".join(
        [
            "import sys",
            *(f"sys.modules[{name!r}] = None" for name in blocked),
            statement,
            "print(*(name for name, module in sys.modules.items() if module is not None))",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_kernel_needs_no_torch() -> None:
    loaded = modules_after(
        "import simdist.kernel; simdist.kernel.Simulation().run()",
        blocked=("torch", "simdist.cluster", "simdist.process", "simdist.c10d"),
    )

    assert "simdist.kernel" in loaded


def test_importing_simdist_imports_nothing_heavy() -> None:
    loaded = modules_after("import simdist")

    assert {"torch", "numpy", "networkx", "simpy", "pydantic"} & loaded == set()
    assert {name for name in loaded if name.startswith("simdist.")} == set()
