"""Holds the taxi example of `make demo`, which the image runs too. Larger examples are in the folder `examples`."""
