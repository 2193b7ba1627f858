"""Torch's process-wide state, separate for each rank: a file for each table, flag or compiler."""
