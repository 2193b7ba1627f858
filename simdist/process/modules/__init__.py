"""Modules per process: imports, attributes and tables that each has for itself, and what ranks leave behind."""
