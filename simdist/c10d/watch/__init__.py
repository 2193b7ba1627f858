"""Who watches operations and judges them: strict mode, debug level DETAIL, flight recorder, profiler.

Each file is one watcher. None of them is needed for an operation to run.
"""
