"""Answers requests in TensorFlow Serving's REST form, which is also version 1 of KServe's protocol.

A request has rows, `{"instances": [...]}`, or columns, `{"inputs": {...}}`. Bytes are `{"b64": "..."}`.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from components.pusher.served import manifest_facts
from embedding_core.errors import ConfigError, EmbeddingError
from embedding_core.schema import Json

_B64 = "b64"
_LONGEST_REASON, _LONGEST_NUMBER = 1000, 40
_NO_REASON = re.compile(r"Graph execution error|Detected at node|<stack traces|Node: |\d+ root error|\s*(File |\[\[|$)")
"""Lines of TensorFlow's errors that say where something is wrong, or nothing."""


class RequestError(EmbeddingError, ValueError):
    """A request breaks a rule.

    Attributes:
      status: the HTTP status of the answer.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Version:
    """A loaded version.

    Attributes:
      number: its number.
      facts: what its manifest says about the push.
      inputs: by signature the tensors that it takes, by name.
    """

    def __init__(self, destination: str, number: int) -> None:
        """Load a version.

        Raises:
          ConfigError: it has no manifest, so EmbeddingPusher did not publish it; or its files are missing or damaged.
        """
        folder = os.path.join(destination, str(number))
        self.number, self.facts = number, manifest_facts(destination, number)
        try:
            self._model = tf.saved_model.load(folder)
        except Exception as error:  # TensorFlow's errors have no class in common
            raise ConfigError(
                f"{folder!r} cannot be loaded ({_reason(str(error))}): publish the model again."
            ) from error
        self.inputs: dict[str, Mapping[str, tf.TensorSpec]] = {
            name: signature.structured_input_signature[1] for name, signature in self._model.signatures.items()
        }

    def call(self, signature: str, tensors: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Call a signature with all its inputs; return arrays by output.

        Raises:
          RequestError: the model refuses the values.
        """
        try:
            outputs = self._model.signatures[signature](**tensors)
        except tf.errors.OpError as error:
            raise RequestError(f"signature {signature!r} refuses the request: {_reason(error.message)}") from error
        return {name: output.numpy() for name, output in outputs.items()}


def json_of(body: bytes | str) -> Any:
    """Read JSON.

    Raises:
      RequestError: it is not JSON, has a key twice in an object, or a number that no float64 holds.
    """
    try:
        return json.loads(body, parse_float=_finite, object_pairs_hook=_object)
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the request is not JSON: {error}.") from error


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise RequestError(f"the request has the number {text[:_LONGEST_NUMBER]}: it is too large; write Infinity.")
    return number


def _object(pairs: Sequence[tuple[str, Any]]) -> Json:
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise RequestError(f"the request has the key {twice[:_LONGEST_REASON]!r} twice in an object: give it once.")
    return values


def predict(version: Version, request: Any) -> Json:
    """Answer a request of rows with `predictions`, one of columns with `outputs`; both with `model_version`.

    Raises:
      RequestError: the request breaks a rule of the form, or does not fit the signature.
    """
    if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
        raise RequestError(
            'the request must be a JSON object with either "instances", a list of rows, or "inputs", the columns.'
        )
    name = request.get("signature_name") or "serving_default"
    if not isinstance(name, str) or name not in version.inputs:
        raise RequestError(f"`signature_name` is {name!r}: version {version.number} has {sorted(version.inputs)}.")
    specs, by_rows = version.inputs[name], "instances" in request
    given = _columns_of(request["instances"], name, specs) if by_rows else _columns(request["inputs"], name, specs)
    tensors = {key: _tensor(key, given[key], spec) for key, spec in specs.items()}
    outputs = {
        key: rest_values(value.tolist(), key.endswith("_bytes")) for key, value in version.call(name, tensors).items()
    }
    only = next(iter(outputs.values())) if len(outputs) == 1 else None
    if not by_rows:
        return {"outputs": outputs if only is None else only, "model_version": str(version.number)}
    count = len(request["instances"])
    if any(not isinstance(column, list) or len(column) != count for column in outputs.values()):
        raise RequestError(f'signature {name!r} does not return a row for each row: give "inputs", not "instances".')
    rows = [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
    return {"predictions": rows if only is None else only, "model_version": str(version.number)}


def status(version: Version, model: str) -> Json:
    """Describe the model's state, for clients of TensorFlow Serving and of KServe."""
    served = {"version": str(version.number), "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    return {"model_version_status": [served], "name": model, "ready": True}


def _columns_of(rows: Any, signature: str, specs: Mapping[str, tf.TensorSpec]) -> dict[str, list[Any]]:
    """Turn rows into columns by input; a row of a signature with one input may be the value alone."""
    if not isinstance(rows, list) or not rows:
        raise RequestError('"instances" must be a list of at least one row.')
    columns: dict[str, list[Any]] = {name: [] for name in specs}
    for number, row in enumerate(rows):
        values = _columns(row, signature, specs, f"row {number} of `instances`")
        for name, column in columns.items():
            column.append(values[name])
    return columns


def _columns(
    given: Any, signature: str, specs: Mapping[str, tf.TensorSpec], what: str = "`inputs`"
) -> Mapping[str, Any]:
    """Return values by input, which is what is given unless it is the value of the only input."""
    if isinstance(given, dict) and given.keys() == specs.keys():
        return given
    if len(specs) == 1 and (not isinstance(given, dict) or given.keys() == {_B64}):
        return dict.fromkeys(specs, given)
    names = sorted(given) if isinstance(given, dict) else type(given).__name__
    raise RequestError(f"{what} has {names}: signature {signature!r} takes an object with {sorted(specs)}.")


def _tensor(name: str, value: Any, spec: tf.TensorSpec) -> tf.Tensor:
    try:
        given = _decoded(value, spec.dtype)
        tensor = tf.constant(given, spec.dtype)
        if spec.dtype.is_floating and (np.isinf(tensor) & ~np.isinf(np.asarray(given, np.float64))).any():
            raise ValueError("a number in it is too large; write Infinity")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RequestError(f"input {name!r} must be {_kind(spec)}: {_reason(str(error))}") from error
    if not spec.shape.is_compatible_with(tensor.shape):
        raise RequestError(f"input {name!r} has the shape {tuple(tensor.shape)}: it must be {_kind(spec)}.")
    return tensor


def _kind(spec: tf.TensorSpec) -> str:
    sizes = ["n" if size is None else str(size) for size in spec.shape]
    return f"{spec.dtype.name} of the shape [{', '.join(sizes)}]"


def describe_inputs(specs: Mapping[str, tf.TensorSpec]) -> str:
    """Describe the inputs of a signature in one line."""
    return "; ".join(f"{name}: {_kind(spec)}" for name, spec in sorted(specs.items())) or "nothing"


def _decoded(value: Any, dtype: tf.DType) -> Any:
    """Replace `{"b64": ...}` by bytes, in nested lists; TensorFlow would take a bool for a number."""
    if isinstance(value, list):
        return [_decoded(item, dtype) for item in value]
    if isinstance(value, bool) and dtype != tf.bool:
        raise ValueError(f"{json.dumps(value)} in it is a bool")
    if not isinstance(value, dict):
        return value
    if value.keys() != {_B64} or not isinstance(value[_B64], str):
        raise ValueError(f'an object in it has the keys {sorted(value)}: it must be {{"b64": "..."}}')
    return base64.b64decode(value[_B64], validate=True)


def rest_values(value: Any, binary: bool = False) -> Any:
    """Return JSON values; bytes are base64 if the output is `binary`, or if they are not UTF-8."""
    if isinstance(value, list):
        return [rest_values(item, binary) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        text = None if binary else value.decode()
    except UnicodeDecodeError:
        text = None
    return {_B64: base64.b64encode(value).decode()} if text is None else text


def _reason(text: str) -> str:
    """Return the first line of an error that says what is wrong."""
    return next((line for line in text.splitlines() if not _NO_REASON.match(line)), "no reason")[:_LONGEST_REASON]
