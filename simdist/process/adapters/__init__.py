"""Installed libraries that look behind what a rank is shown, each told what it may see."""
