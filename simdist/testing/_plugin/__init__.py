"""The parts of the pytest plugin that only simulated tests need; nothing of this is imported before.

    marker, options -> `_settings` -> Settings
    a marked test:  `_execution` runs the body on each rank, with `_arguments` and `_surroundings` of its own
    a test with `sim`:  `_sim` gives faults and starts worlds; `_live` is one that is under way
    both:  `_worlds` opens each world and keeps what became of it; `_verdict` finds the failure, `_frames` its
    traceback, `_report` its text; `_files` writes traces, `_repeat` runs the test again and compares

Open `_worlds.py` first. The engine below is `simdist.world._world`.
"""
