"""Installed libraries that bypass what a rank is shown: each is adapted to see what it may."""
