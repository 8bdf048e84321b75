"""Builds the TFX pipeline that a configuration describes."""
