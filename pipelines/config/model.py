"""Declares the sections of the model and of the push."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from embedding_core.schema import (
    ByName,
    NonNegative,
    Positive,
    Section,
    Text,
)

BUILT_IN_MODELS = {"ranking": "pipelines.models.ranking", "two_tower": "pipelines.models.two_tower"}


class Model(Section):
    """The model to train.

    Attributes:
      name: name of the model: "ranking", "two_tower", or the dotted path of your own module with a function `build`.
      arguments: keyword arguments of `build`.
    """

    SHORT = "name"

    name: Text = "ranking"
    arguments: ByName[Any] = Field(default_factory=dict)

    @property
    def module(self) -> str:
        """The dotted path of the module with `build`."""
        return BUILT_IN_MODELS.get(self.name, self.name)


class Push(Section):
    """The destination of the served model.

    Attributes:
      destination: folder of versions, which TensorFlow Serving watches; null is `serving` in the work_dir.
      tolerance: largest difference between training and serving that is accepted.
      keep_last: number of versions that are kept; null is all.
      rows_dtype: type of the served rows; float16 halves the tables, and `tolerance` has to allow for the lost digits.
    """

    SHORT = "destination"

    destination: Text | None = None
    tolerance: NonNegative = 1e-5
    keep_last: Positive | None = None
    rows_dtype: Literal["float32", "float16"] = "float32"
