"""Reads the figures of a run and shows them on the screen and in HTML pages."""
