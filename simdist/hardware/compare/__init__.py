"""Compares simulated and real runs: accounts, flight records, the parity report, calibration."""
