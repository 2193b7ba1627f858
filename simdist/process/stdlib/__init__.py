"""What the standard library shows a process: its clock, environment, entropy, sockets, settings, one file each."""
