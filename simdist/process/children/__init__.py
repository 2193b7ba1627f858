"""Processes and programs that a rank starts: simulated processes on its host, real programs outside the simulation."""
