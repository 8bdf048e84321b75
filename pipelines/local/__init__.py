"""Runs a pipeline on this machine."""
