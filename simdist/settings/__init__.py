"""The settings of a run, defined once: what each has to be, and which do not go together.

`_settings.py` has them: the keyword arguments of `simdist.run` and its relatives, the keys of a scenario, a marker's.
`_keywords.py` types those that relatives of `simdist.run` take. `_replay.py` writes the call that repeats a run.
"""

from typing import TYPE_CHECKING

from simdist._lazy import lazily
from simdist.settings._settings import (
    ANYTHING,
    BACKENDS,
    DISK,
    SETTINGS,
    START_TIME,
    RunSettings,
    check_fitting,
    check_settings,
    has_devices,
    misfits,
    unmoved_problems,
)

if TYPE_CHECKING:
    from simdist.settings._keywords import (
        AgreeSettings,
        CheckedSettings,
        ExploreSettings,
        FuzzSettings,
        ResumeSettings,
        RunManySettings,
        SettingsOfRun,
        SweepSettings,
    )
    from simdist.settings._replay import ALWAYS, call_text

__all__ = [
    "ALWAYS",
    "ANYTHING",
    "BACKENDS",
    "DISK",
    "SETTINGS",
    "START_TIME",
    "AgreeSettings",
    "CheckedSettings",
    "ExploreSettings",
    "FuzzSettings",
    "ResumeSettings",
    "RunManySettings",
    "RunSettings",
    "SettingsOfRun",
    "SweepSettings",
    "call_text",
    "check_fitting",
    "check_settings",
    "has_devices",
    "misfits",
    "unmoved_problems",
]

# Loaded on first use: to check settings takes no cluster.
_HOMES = {"ALWAYS": "_replay", "call_text": "_replay"}
_HOMES |= dict.fromkeys(
    (
        "AgreeSettings",
        "CheckedSettings",
        "ExploreSettings",
        "FuzzSettings",
        "ResumeSettings",
        "RunManySettings",
        "SettingsOfRun",
        "SweepSettings",
    ),
    "_keywords",
)
__getattr__ = lazily(__name__, _HOMES)
