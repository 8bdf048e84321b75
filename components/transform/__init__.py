"""Transform: the graph of TensorFlow Transform; it can keep the ranges of dense features of a previous model."""

from components.transform.component import Transform

__all__ = ["Transform"]
