"""Serves a folder of versions with KServe's model server: the newest version, over TensorFlow Serving's REST form.

    python predictor.py --versions /mnt/models --model_name taxi

It needs kserve and TensorFlow, nothing of this project. `POST /v1/models/taxi:predict` takes {"instances": [...]} as
TensorFlow Serving does, with rows {"b64": ...} or {column: value}, and answers {"predictions": [...]}; `signature_name`
chooses a signature of one output row per input row. `model_version` says which version answered.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import kserve
import numpy as np
import tensorflow as tf
from kserve.errors import InvalidInput


def newest(folder: str) -> int | None:
    """Return the largest number among the versions in a folder."""
    return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=None)


class Version:
    """A version in a session. The session ends after the last request that uses it."""

    def __init__(self, folder: str, number: int) -> None:
        """Load the version."""
        self.number = number
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            path = os.path.join(folder, str(number))
            self._signatures = tf.compat.v1.saved_model.load(self._session, ["serve"], path).signature_def

    def __del__(self) -> None:
        self._session.close()

    def answer(self, signature: str, instances: list[Any]) -> list[Any]:
        """Answer rows with a signature; see the module for their form."""
        if signature not in self._signatures:
            raise InvalidInput(f"version {self.number} has no signature {signature!r}")
        given, made = self._signatures[signature].inputs, self._signatures[signature].outputs
        if len(given) == 1 and not all(
            isinstance(instance, dict) and instance.keys() == given.keys() for instance in instances
        ):
            instances = [dict.fromkeys(given, instance) for instance in instances]
        try:
            feed = {
                tensor.name: _array([instance[name] for instance in instances], tensor)
                for name, tensor in given.items()
            }
            found = self._session.run({name: tensor.name for name, tensor in made.items()}, feed)
        except (KeyError, TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise InvalidInput(f"{type(error).__name__}: {str(error)[:1000]}") from error
        columns = {name: _json(value.tolist()) for name, value in found.items()}
        if len(columns) == 1:
            return next(iter(columns.values()))
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _array(values: list[Any], tensor: Any) -> np.ndarray[Any, Any]:
    decoded = [base64.b64decode(value["b64"]) if isinstance(value, dict) else value for value in values]
    return np.array(decoded, tf.as_dtype(tensor.dtype).as_numpy_dtype)


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return [_json(item) for item in value] if isinstance(value, list) else value


class Versions(kserve.Model):
    """A model of KServe that answers with the newest version, and looks for a newer one each second."""

    def __init__(self, name: str, folder: str) -> None:
        """Name the model; `load` loads it."""
        super().__init__(name)
        self._folder = folder
        self._version: Version | None = None

    def load(self) -> bool:
        """Load the newest version, and follow the folder from then on."""
        self._take_newest()
        threading.Thread(target=self._follow, daemon=True).start()
        return bool(self.ready)

    def _take_newest(self) -> None:
        number = newest(self._folder)
        if number is not None and (self._version is None or number != self._version.number):
            self._version = Version(self._folder, number)  # requests use the previous one until here
        self.ready = self._version is not None

    def _follow(self) -> None:
        while True:
            time.sleep(1.0)
            try:
                self._take_newest()
            except Exception:  # such as a version that keep-last removed while it was loaded: the next look decides
                logging.exception("no version of %s was taken", self._folder)

    async def predict(self, payload: Any, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Answer a request in a thread, so that others are read meanwhile."""
        instances = payload.get("instances") if isinstance(payload, dict) else None
        if not isinstance(instances, list) or not instances:
            raise InvalidInput('the request must be {"instances": [...]} with at least one row')
        version = self._version
        assert version is not None  # KServe asks only a model that is ready
        signature = payload.get("signature_name", "serving_default")
        found = await asyncio.to_thread(version.answer, signature, instances)
        return {"predictions": found, "model_version": str(version.number)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
    parser.add_argument("--versions", required=True, help="Folder of the versions.")
    arguments = parser.parse_args()
    model = Versions(arguments.model_name, arguments.versions)
    model.load()
    kserve.ModelServer().start([model])
