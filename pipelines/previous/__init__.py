"""Finds previous runs and what a new run takes over from them."""
