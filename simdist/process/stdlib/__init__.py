"""The standard library as a process sees it: its clock, environment, entropy, sockets, settings, one file each."""
