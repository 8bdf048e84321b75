"""Saves the dense part of a model, its optimizer's state and the ranges of its inputs, for later runs to start from.

The sealed folder `dense` of an embedding checkpoint has the tensor bundle `variables` and `manifest.json`. Weights are
meaningful only with the inputs that they were trained on, so both are kept together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
import tf_keras

from embedding_core.checkpoint.bundle import BundleReader
from embedding_core.errors import CheckpointError
from embedding_core.schema import Json
from embedding_core.storage import SealedFolder, file_digest, file_names_below, make_folders, whole_folder

DENSE = "dense"
_BUNDLE = "variables"
_SEALED = SealedFolder(constants={"format": "dense-part", "version": 1})
_AUTOMATIC = re.compile(r"_\d+\Z")  # Keras numbers the layers of a process: dense, dense_1, ...
_RATES = ("_learning_rate", "_current_learning_rate")  # not saved: each run takes its rates from the configuration


class DensePart(NamedTuple):
    """A dense part that was verified.

    Attributes:
      folder: path of the dense part.
      optimizer: name of its Keras optimizer.
      inputs: inputs and labels of the model, as `embedding_core.training.dense_start.dense_inputs` describes them.
      ranges: range that each dense feature was scaled by, if it was recorded.
      variables: shape and dtype of every variable by its key, `model/...` and `optimizer/...`.
    """

    folder: str
    optimizer: str
    inputs: Json
    ranges: Mapping[str, Mapping[str, object]]
    variables: Mapping[str, Sequence[object]]

    def values(self, keys: Iterable[str]) -> Iterator[tf.Tensor]:
        """Read the values of variables.

        Raises:
          CheckpointError: the file is damaged.
        """
        reader = BundleReader(os.path.join(self.folder, _BUNDLE))
        yield from map(reader.tensor, keys)


def named_variables(
    model: tf_keras.Model, optimizer: tf_keras.optimizers.Optimizer
) -> tuple[dict[str, tf.Variable], dict[str, tf.Variable]]:
    """Return the variables of a model and of its optimizer by keys that are the same in every process.

    A key has the variable's position and its name, without the numbers that Keras gives to layers of the same name.
    """
    variables = list(optimizer.variables)
    known = {id(variable) for variable in variables}
    variables += [
        value
        for name, value in sorted(vars(optimizer).items())
        if isinstance(value, tf.Variable) and id(value) not in known and name not in _RATES
    ]
    return _keys("model", model.weights), _keys("optimizer", variables)


def _keys(kind: str, variables: Iterable[tf.Variable]) -> dict[str, tf.Variable]:
    return {f"{kind}/{index}/{_plain(variable.name)}": variable for index, variable in enumerate(variables)}


def _plain(name: str) -> str:
    return "/".join(_AUTOMATIC.sub("", part) for part in name.partition(":")[0].split("/"))


def shapes_and_dtypes(variables: Mapping[str, tf.Variable]) -> dict[str, list[object]]:
    """Return shape and dtype of each variable, as JSON values."""
    return {key: [variable.shape.as_list(), variable.dtype.name] for key, variable in variables.items()}


def write_dense(
    folder: str,
    model: tf_keras.Model,
    optimizer: tf_keras.optimizers.Optimizer,
    *,
    name: str,
    inputs: Json,
    ranges: Mapping[str, Mapping[str, object]],
) -> None:
    """Write the dense part as a sealed folder, in one rename.

    Args:
      folder: the folder to write; one that exists is replaced.
      model: the dense part.
      optimizer: its optimizer, built.
      name: name of the optimizer.
      inputs: inputs of the model, see `DensePart`.
      ranges: ranges of its dense features, see `DensePart`.

    Raises:
      CheckpointError: the folder cannot be written.
    """
    variables = {key: each for group in named_variables(model, optimizer) for key, each in group.items()}
    body = {"optimizer": name, "inputs": inputs, "ranges": ranges, "variables": shapes_and_dtypes(variables)}
    with whole_folder(folder, replace=True) as temporary:
        if variables:
            tf.raw_ops.SaveV2(
                prefix=os.path.join(temporary, _BUNDLE),
                tensor_names=list(variables),
                shape_and_slices=[""] * len(variables),
                tensors=[tf.constant(variable.numpy()) for variable in variables.values()],
            )
        _SEALED.write(temporary, body)


def read_dense(folder: str) -> DensePart | None:
    """Read and verify a dense part; None if there is none, as in checkpoints of previous releases.

    Args:
      folder: folder of the dense part: `DENSE` in an embedding checkpoint.

    Raises:
      CheckpointError: a file is missing or damaged.
    """
    if not _SEALED.exists(folder):
        return None
    body = _SEALED.verify(folder)
    try:
        return DensePart(folder, body["optimizer"], body["inputs"], body["ranges"], body["variables"])
    except KeyError as error:
        raise CheckpointError(f"{folder!r} has no {error} in its manifest: take another checkpoint.") from error


def copy_dense(source: str, destination: str) -> bool:
    """Verify a dense part and copy it into a folder that is being written; return whether there is one."""
    if read_dense(source) is None:
        return False
    make_folders(destination)
    for name in file_names_below(source):
        file_digest(os.path.join(source, name), copy_to=os.path.join(destination, name))
    return True
