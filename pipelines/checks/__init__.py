"""Checks what can be checked before a run: settings, the first rows of the data, table sizes, the TPU program."""
