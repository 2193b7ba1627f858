"""Faults of simulated disks."""
