"""Faults between ranks, and between a rank and the launcher's store."""
