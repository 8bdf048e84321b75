"""Makes a folder of versions a model of Triton: a configuration beside the versions, and a backend that answers.

Below `MODELS`, the model repository of Triton, and `BACKENDS`, the folder of its backends:

MODELS/taxi/config.pbtxt              written here, for a signature of the newest version
MODELS/taxi/1790000000/               the versions, pushed here: `push: {destination: MODELS/taxi}`
BACKENDS/tfx_embeddings/model.py      a copy of `triton_backend.py`
BACKENDS/python/                      Triton's own
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from components.pusher.publish import require_local
from components.pusher.served import MODEL, served_versions
from embedding_core.errors import ConfigError
from embedding_core.storage import StrPath, whole_file

_BACKEND = "tfx_embeddings"
_PROGRAM = Path(__file__).with_name("triton_backend.py")
_TYPES = {
    tf.string: "TYPE_STRING",
    tf.bool: "TYPE_BOOL",
    tf.float16: "TYPE_FP16",
    tf.float32: "TYPE_FP32",
    tf.float64: "TYPE_FP64",
    tf.int32: "TYPE_INT32",
    tf.int64: "TYPE_INT64",
}


def write_triton_model(base: StrPath, signature: str, backends: StrPath | None = None) -> str:
    """Write Triton's configuration of a folder of versions, and the backend that answers them.

    Triton then serves the newest version, and takes over each push and rollback. Call this again only if a new model
    has other inputs or outputs.

    Args:
      base: folder of the versions; its name is the model's name in Triton.
      signature: the signature of the versions to answer. Triton has one for a model.
      backends: folder of Triton's backends to write the backend to; None writes the configuration alone.

    Returns:
      The path of the configuration.

    Raises:
      ConfigError: the folder has no version, the version has no such signature, or Triton cannot call the signature;
        or a file cannot be written.
    """
    require_local(base)
    text = _configuration(_signature(base, signature), signature)
    path = os.path.join(base, "config.pbtxt")
    try:
        if backends is not None:
            program = Path(backends, _BACKEND, "model.py")
            program.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(program) as file:
                shutil.copyfile(_PROGRAM, file)
        with whole_file(path) as file:
            Path(file).write_text(text)
    except OSError as error:
        raise ConfigError(f"Triton's files cannot be written ({error}): name folders that can be written.") from error
    return path


def _signature(base: StrPath, name: str) -> Any:
    """Return the signature's definition in the newest version."""
    versions = served_versions(base)
    if not versions:
        raise ConfigError(f"{os.fspath(base)!r} has no version: push one first, and name the folder of versions.")
    file = Path(base, str(versions[-1]), MODEL)
    if not file.is_file():
        raise ConfigError(f"{str(file.parent)!r} is not a version: it has no {MODEL!r}; name a folder of versions.")
    signatures = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs[0].signature_def
    if name not in signatures:
        there = ", ".join(sorted(signature for signature in signatures if not signature.startswith("__")))
        raise ConfigError(f"`--signature` is {name!r}: version {versions[-1]} has {there}.")
    return signatures[name]


def _configuration(signature: Any, name: str) -> str:
    lines = [
        "# Written by `tfx-embeddings triton`.",
        f"backend: {json.dumps(_BACKEND)}",
        "version_policy { latest { num_versions: 1 } }",
        f'parameters {{ key: "signature" value {{ string_value: {json.dumps(name)} }} }}',
        *_tensors("input", signature.inputs, name),
        *_tensors("output", signature.outputs, name),
    ]
    return "\n".join(lines) + "\n"


def _tensors(kind: str, tensors: Mapping[str, Any], signature: str) -> Iterable[str]:
    """Return a line for each tensor; the batch is the first of its dimensions."""
    if not tensors:
        raise ConfigError(f"`--signature` is {signature!r}, which has no {kind}: Triton cannot call it.")
    for name in sorted(tensors):
        shape = [dimension.size for dimension in tensors[name].tensor_shape.dim]
        if not shape:
            raise ConfigError(
                f"`--signature` is {signature!r}, whose {kind} {name!r} is a scalar: Triton has only tensors with "
                "dimensions; choose another signature."
            )
        data_type = _TYPES[tf.as_dtype(tensors[name].dtype)]
        yield f"{kind} {{ name: {json.dumps(name)} data_type: {data_type} dims: {shape} }}"
