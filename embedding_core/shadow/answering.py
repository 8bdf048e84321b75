"""Loads a SavedModel as a server does and answers requests from standard input; runs as a program.

`VersionProcess` starts it isolated (``python -I``), one process for each version. Only TensorFlow is imported. The
session loader and session callables are those that TensorFlow Serving uses.

A message, in both directions, is a line of JSON followed by the parts whose sizes the line has in `parts`.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

_SERVE = "serve"


def write_message(stream: BinaryIO, values: Mapping[str, Any], parts: Mapping[str, bytes] | None = None) -> None:
    """Write JSON values and binary parts by name."""
    named = dict(parts or {})
    line = json.dumps({**values, "parts": {name: len(part) for name, part in named.items()}})
    stream.write(line.encode() + b"\n")
    for part in named.values():
        stream.write(part)
    stream.flush()


def read_message(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """Read what `write_message` wrote; None at the end of the stream, also if it ends within a message."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    values = json.loads(line)
    parts = {name: stream.read(size) for name, size in values["parts"].items()}
    whole = all(len(parts[name]) == size for name, size in values.pop("parts").items())
    return (values, parts) if whole else None


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:  # getrusage also counts the parent, before the exec
            (line,) = [line for line in file if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class AnsweringModel:
    """A SavedModel in a session of this isolated program; takes and gives serialized tensors.

    Attributes:
      signatures: SignatureDef by name.
    """

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        self._tf = tf
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            loaded = tf.compat.v1.saved_model.load(self._session, [_SERVE], folder)
        self.signatures: dict[str, Any] = dict(loaded.signature_def)
        self._callables: dict[tuple[Any, ...], Callable[..., list[Any]]] = {}

    def answer(
        self, name: str, inputs: Mapping[str, bytes], outputs: Sequence[str]
    ) -> tuple[dict[str, bytes], float | None]:
        """Answer a request.

        Args:
          name: name of the signature.
          inputs: serialized TensorProto by input name.
          outputs: names of the outputs to compute; empty for all.

        Returns:
          Serialized TensorProto by output name, and the seconds that the session took; None for the first request of
          its kind, which the session optimizes its graph for.

        Raises:
          ValueError: the signature does not have these inputs or outputs.
          tf.errors.OpError: the model refuses the request.
        """
        tf = self._tf
        arrays = {key: array_of(value) for key, value in inputs.items()}
        self._check_types(name, arrays)
        fetched = tuple(outputs) or tuple(sorted(self._signature(name).outputs))
        key = (name, tuple(sorted(arrays)), fetched)
        known = key in self._callables
        if not known:
            self._callables[key] = self._callable(name, sorted(arrays), fetched)
        values = [arrays[array] for array in sorted(arrays)]
        start = time.perf_counter()
        answers = self._callables[key](*values)
        seconds = time.perf_counter() - start
        protos = [tf.make_tensor_proto(answer).SerializeToString() for answer in answers]
        return dict(zip(fetched, protos, strict=True)), seconds if known else None

    def is_of_session(self, error: Exception) -> bool:
        """Return whether the graph raised the error: its message may quote the request."""
        return isinstance(error, self._tf.errors.OpError | UnicodeError)

    def _signature(self, name: str) -> Any:
        if name not in self.signatures:
            known = ", ".join(signature for signature in sorted(self.signatures) if not signature.startswith("__"))
            raise ValueError(f"there is no signature {name!r}: the version has {known}.")
        return self.signatures[name]

    def _check_types(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Refuse a tensor of another type than the input, as a server does; a session would convert it."""
        tf = self._tf
        takes = {key: tf.as_dtype(info.dtype) for key, info in self._signature(name).inputs.items()}
        for key, array in arrays.items():
            given = tf.as_dtype(array.dtype)
            if given != takes.get(key, given):
                raise ValueError(f"input {key!r} is {given.name}: signature {name!r} takes {takes[key].name}.")

    def _callable(self, name: str, given: Sequence[str], fetched: Sequence[str]) -> Callable[..., list[Any]]:
        """Make a session callable of the given inputs, in order, that returns the fetched outputs."""
        signature = self._signature(name)
        if set(given) != set(signature.inputs):
            raise ValueError(f"the inputs are {sorted(given)}: signature {name!r} takes {sorted(signature.inputs)}.")
        missing = sorted(set(fetched) - set(signature.outputs))
        if missing:
            raise ValueError(f"there is no output {missing[0]!r}: signature {name!r} has {sorted(signature.outputs)}.")
        made: Callable[..., list[Any]] = self._session.make_callable(
            [signature.outputs[key].name for key in fetched], feed_list=[signature.inputs[key].name for key in given]
        )
        return made


def array_of(data: bytes) -> Any:
    """Return a serialized TensorProto as a numpy array; texts are bytes in an array of objects.

    Raises:
      google.protobuf.message.DecodeError: it is not a TensorProto.
      ValueError: its content does not have its shape.
    """
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    return tf.make_ndarray(tensor_pb2.TensorProto.FromString(data))


def main(folder: str) -> None:
    """Load the SavedModel, and answer requests until standard input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the messages
    importlib.import_module("tensorflow")  # which is not part of the time to load
    start = time.perf_counter()
    version = AnsweringModel(folder)
    write_message(answers, {"load_seconds": time.perf_counter() - start, "loaded_bytes": peak_bytes()})
    while (message := read_message(requests)) is not None:
        values, inputs = message
        try:
            outputs, seconds = version.answer(values["signature"], inputs, values["outputs"])
        except Exception as error:  # a server answers any request that it cannot compute by an error
            refusal = {"error": f"{type(error).__name__}: {error}", "quotes": version.is_of_session(error)}
            write_message(answers, {**refusal, "peak_bytes": peak_bytes()})
        else:
            write_message(answers, {"seconds": seconds, "peak_bytes": peak_bytes()}, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
