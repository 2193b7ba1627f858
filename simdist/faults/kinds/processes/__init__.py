"""Faults of the processes of ranks, and of their hosts."""
