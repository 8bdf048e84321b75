"""Declares the YAML section `push`: where a model is served from, and how far it may differ from training."""

from __future__ import annotations

from embedding_core.rooms import hooks, with_keys
from embedding_core.schema import NonNegative, Positive, Section, Text
from embedding_core.serving_config import RowsDtypeSetting, TopK

_ROOMS = hooks("components", "keys")
FORMS = tuple(key for room in _ROOMS if "push" in room.KEYS for key in room.KEYS["push"].model_fields)
"""The keys that optional rooms add: sections with the settings of a form of push, or null."""


@with_keys("push", _ROOMS)
class Push(Section):
    """How and where a model is pushed.

    Attributes:
      destination: folder of versions, which TensorFlow Serving watches; null is `serving` in the work_dir.
      tolerance: largest accepted difference between the results of training and serving.
      keep_last: number of versions that are kept; null is all.
      rows_dtype: type of the served rows, or a mapping of tables to types, the others being float32. float16 halves a
        table, and int8 stores n values in n + 8 bytes; `tolerance` has to allow for the lost digits.
      top_k: what the signatures `top_k` and `top_k_filtered` of a retrieval model return.
    """

    SHORT = "destination"
    PATHS = ("destination",)

    destination: Text | None = None
    tolerance: NonNegative = 1e-5
    keep_last: Positive | None = None
    rows_dtype: RowsDtypeSetting = "float32"
    top_k: TopK = TopK()
