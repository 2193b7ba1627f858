"""Watchers and judges of operations: strict mode, debug level DETAIL, flight recorder, profiler, results.

Each file is one watcher. None of them is needed for an operation to run. Strict mode, profiler and results are judges
and listeners on the bus. DETAIL is a group around another group. The flight recorder is called directly; its file says
why.
"""
