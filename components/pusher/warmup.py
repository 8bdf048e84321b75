"""Writes the requests that TensorFlow Serving sends to a version before the version counts as loaded.

They are TFRecords of `PredictionLog`, in the one folder that the server reads. Without them the first
request to a signature waits for its optimization. Every published version contains them, so they are made of
synthetic rows, not of real ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from embedding_core.errors import CheckpointError
from embedding_core.schema import Json

WARMUP = "assets.extra/tf_serving_warmup_requests"
_MOST_REQUESTS = 1000  # the server refuses a version with more


def write_warmup(
    saved_model: str | os.PathLike[str], requests: Mapping[str, Json], batches: tuple[int, ...] = (1, 32)
) -> int:
    """Write warm-up requests into a SavedModel.

    Args:
      saved_model: its folder.
      requests: for each signature, arrays `[rows, ...]` by input name; rows are repeated if there are too few.
      batches: numbers of rows; each signature gets one request of each number.

    Returns:
      How many requests were written.

    Raises:
      CheckpointError: there are more requests than a server accepts.
    """
    logs = [
        _log(signature, {name: _rows(value, batch) for name, value in inputs.items()})
        for signature, inputs in requests.items()
        for batch in batches
    ]
    if len(logs) > _MOST_REQUESTS:
        raise CheckpointError(f"{len(logs)} warm-up requests: a server takes at most {_MOST_REQUESTS}; pass fewer.")
    path = Path(saved_model) / WARMUP
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for log in logs:
            writer.write(log.SerializeToString(deterministic=True))
    return len(logs)


def _rows(value: Any, batch: int) -> Any:
    """Return the first `batch` rows, repeated if there are fewer."""
    return value[[place % len(value) for place in range(batch)]]


def _log(signature: str, inputs: Json) -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
