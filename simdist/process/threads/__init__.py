"""Threads of a rank: tasks of its process, and the locks and queues on which they wait in virtual time."""
