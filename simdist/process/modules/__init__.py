"""Whose modules are whose: imports, attributes and tables that each process has for itself, and what ranks leave."""
