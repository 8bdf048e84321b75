"""Turns raw columns into tokens and ids, the same way for counting, training and serving."""
