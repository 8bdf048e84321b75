"""Loads an exported model as a server does, in a session of this process, to apply deltas to it and to compare answers.

Each session has its own variables and vocabularies; two loads with `tf.saved_model.load` would share vocabularies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import Self

from embedding_core.serving.served_state import ServedState, read_state
from embedding_core.storage import scratch_folder

_v1 = tf.compat.v1


class LoadedVersion:
    """A SavedModel in a session: call signatures by name, read the state that is served. Close it after use."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Load the SavedModel."""
        self._folder = os.fspath(folder)
        self._session = _v1.Session(graph=tf.Graph(), config=_v1.ConfigProto(device_count={"GPU": 0}))
        with self._session.graph.as_default():
            self._meta = _v1.saved_model.load(self._session, ["serve"], self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the model."""
        self._session.close()

    @property
    def signatures(self) -> frozenset[str]:
        """The names of the signatures."""
        return frozenset(name for name in self._meta.signature_def if not name.startswith("__"))

    def call(self, signature: str, **inputs: Any) -> dict[str, Any]:
        """Call a signature with arrays or scalars by name, and return arrays by name."""
        definition = self._meta.signature_def[signature]
        feed = {definition.inputs[name].name: value for name, value in inputs.items()}
        answers: dict[str, Any] = self._session.run(
            {name: one.name for name, one in definition.outputs.items()}, feed_dict=feed
        )
        return answers

    def answer(self, signature: str, rows: Any) -> dict[str, Any]:
        """Call a signature with serialized tf.Examples, or with tensors by name."""
        if isinstance(rows, Mapping):
            return self.call(signature, **rows)
        (name,) = self._meta.signature_def[signature].inputs
        return self.call(signature, **{name: np.asarray(list(rows), object)})

    def reset(self) -> None:
        """Restore the variables of the export, as loading the version again would."""
        saver = self._meta.saver_def
        prefix = os.path.join(self._folder, "variables", "variables")
        self._session.run(saver.restore_op_name, feed_dict={saver.filename_tensor_name: prefix})

    def state(self) -> ServedState:
        """Read what is served now, through a checkpoint of the session's variables."""
        with scratch_folder("state") as folder:
            prefix = os.path.join(folder, "variables")
            saver = self._meta.saver_def
            self._session.run(saver.save_tensor_name, feed_dict={saver.filename_tensor_name: prefix})
            return read_state(self._folder, prefix)
