"""Transform: TFX's own, which can keep the ranges of dense features that an earlier model was trained with."""

from components.transform.component import Transform

__all__ = ["Transform"]
