"""Writes Python code that sends a request to a pushed version, with the names and types of its inputs.

The code runs unchanged. Its values are synthetic (`embedding_core.serving.synthetic_rows`): tokens of private columns
are invented.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from components.run_inputs import sources_of_run
from embedding_core.serving import columns_of, named_inputs, synthetic_rows
from embedding_core.tasks import prediction_name
from embedding_core.training.finished_run import RunDescription

_ROWS = 2


def request_text(version: str, run: RunDescription, vocabularies: str, transform_graph: str) -> str:
    """Write Python code that scores two rows with the signature `raw` of a version, and needs only TensorFlow.

    Args:
      version: folder of the pushed version.
      run: `training.json` of the ModelRun.
      vocabularies: folder of the Vocabularies artifact.
      transform_graph: folder of the TransformGraph artifact.
    """
    dense = sources_of_run(run, transform_graph=transform_graph).of_features()
    files = {name: os.path.join(vocabularies, f"{name}.txt") for name in run.vocabularies}
    named, _ = named_inputs(columns_of(run.config, dense), synthetic_rows(run.config, dense, files, _ROWS))
    inputs = [f'    "{name}": tf.constant({_literal(value)}),  # {_kind(value)}' for name, value in named.items()]
    return "\n".join(
        [
            "import tensorflow as tf",
            f"model = tf.saved_model.load({version!r})",
            "inputs = {",
            *inputs,
            "}",
            'answer = model.signatures["raw"](**inputs)',
            *(f'print(answer["{prediction_name(run.tasks, task)}"].numpy())' for task in run.tasks),
        ]
    )


def _literal(value: npt.NDArray[Any]) -> str:
    """Write the arguments of `tf.constant`: the array as a literal, and its dtype if it is neither float32 nor text."""
    if value.dtype == object:
        return repr([_shown(item) for item in value.tolist()])
    dtype = "" if value.dtype == np.float32 else f", tf.{value.dtype.name}"
    return f"{value.tolist()!r}{dtype}"


def _shown(value: Any) -> Any:
    """Decode the bytes that are UTF-8, also in lists; leave other bytes as they are."""
    if isinstance(value, list):
        return [_shown(item) for item in value]
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _kind(value: npt.NDArray[Any]) -> str:
    shape = ", ".join(["rows", *("values" for _ in value.shape[1:])])
    return f"{'string' if value.dtype == object else value.dtype.name} [{shape}]"
