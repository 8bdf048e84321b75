"""Reads the request logs that TensorFlow Serving writes: TFRecords of `PredictionLog`, also gzip."""

from __future__ import annotations

import contextlib
import gzip
import math
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

from google.protobuf.message import DecodeError

from components.artifact_files import read_records
from components.shadow.keys import log_files
from embedding_core.errors import DataError
from embedding_core.shadow.replay import Request
from embedding_core.storage import bounds, open_file

_GZIP = b"\x1f\x8b\x08"
_DEFAULT = "serving_default"


def read_requests(path: str) -> Iterator[Request]:
    """Yield the requests of a log, one in memory at a time.

    Args:
      path: see `log_files`.

    Raises:
      ConfigError: the file does not exist.
      DataError: a file is damaged or cut off, a record is not a `PredictionLog`, or a record or an input is larger than
        `bounds.RECORD_BYTES`; the error has its number.
    """
    for file in log_files(path):
        yield from _requests_of(file)


def _requests_of(file: str) -> Iterator[Request]:
    try:
        with open_file(file) as stream, _unpacked(stream) as records:
            for number, record in enumerate(read_records(file, records), start=1):
                yield _request(f"{file}, record {number}", record)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file} is truncated or damaged ({error}): write it again.") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def _unpacked(stream: IO[bytes]) -> contextlib.AbstractContextManager[IO[bytes]]:
    start = stream.read(len(_GZIP))
    stream.seek(0)
    if start == _GZIP:
        return contextlib.closing(cast(IO[bytes], gzip.GzipFile(fileobj=stream)))
    return contextlib.nullcontext(stream)


def _request(place: str, record: bytes) -> Request:
    from tensorflow_serving.apis import prediction_log_pb2

    try:
        log = prediction_log_pb2.PredictionLog.FromString(record)
    except DecodeError as error:
        raise _not_a_log(place) from error
    kind = log.WhichOneof("log_type")
    if kind is None:
        raise _not_a_log(place)
    request: Any = getattr(log, kind).request
    if kind != "predict_log":
        return Request(place=place, model=_model_of(kind, request), kind=kind)
    for name, value in request.inputs.items():  # one value stands for all if a tensor says so
        count = math.prod(dim.size for dim in value.tensor_shape.dim)
        if count > bounds.RECORD_BYTES // 4:
            raise DataError(
                f"{place}: input {name!r} says that it has {count:,} values, and {bounds.RECORD_BYTES // 4:,} is the "
                "most that it may have: log requests of fewer rows."
            )
    return Request(
        place=place,
        model=request.model_spec.name,
        kind=kind,
        signature=request.model_spec.signature_name or _DEFAULT,
        inputs={name: value.SerializeToString() for name, value in request.inputs.items()},
        outputs=tuple(sorted(request.output_filter)),
    )


def _model_of(kind: str, request: Any) -> str:
    """Return the name of the model that a request of a kind that is not replayed asks, of several the first."""
    asked = request.tasks if kind == "multi_inference_log" else request if kind == "predict_streamed_log" else [request]
    return "".join(asked_for.model_spec.name for asked_for in asked[:1])


def _not_a_log(place: str) -> DataError:
    return DataError(
        f"{place} is not a `PredictionLog`: give the log that TensorFlow Serving writes with `logging_config`, or that "
        "your server writes in this form."
    )
