"""Reads the figures of runs and lineages, and shows them on the screen and in HTML pages."""
