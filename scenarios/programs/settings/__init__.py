"""Settings of `with_hydra`, found as a package because the program is imported."""
