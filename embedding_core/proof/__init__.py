"""Proves that a served model gives the numbers that were trained."""
