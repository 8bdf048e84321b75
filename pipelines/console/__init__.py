"""Prints to the terminal: tables, quiet libraries, errors in one line."""
