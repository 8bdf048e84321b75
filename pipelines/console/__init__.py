"""Prints to the terminal: tables, errors in one line, and nothing of other libraries."""
