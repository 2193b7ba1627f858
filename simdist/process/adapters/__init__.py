"""Installed libraries that look behind what a rank is shown: each gets what it may see."""
