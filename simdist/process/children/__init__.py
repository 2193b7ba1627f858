"""Processes and programs that a rank starts: simulated ones beside it, real ones outside the simulation."""
