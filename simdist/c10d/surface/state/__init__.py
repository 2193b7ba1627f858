"""Torch's process-wide state, of which each rank has its own: a file for each table, flag or compiler."""
