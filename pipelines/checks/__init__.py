"""Checks before a run: settings, the first rows of the data, table sizes, and the TPU program."""
