"""Triton's backend for pushed versions: answers a signature of a SavedModel with TensorFlow on the CPU.

`write_triton_model` copies this file to a folder of backends as `tfx_embeddings/model.py`. The backend `python`, which
must be beside that folder, runs it in a process for each version. It needs TensorFlow, and nothing of this project.
"""

import json
import os
from typing import Any

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    """A version of a model, in a session as in TensorFlow Serving. Triton requires these names."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the version that Triton names; the model's parameter `signature` says what to answer."""
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        import tensorflow as tf  # only here: Triton imports this file one more time to complete the configuration

        name = json.loads(args["model_config"])["parameters"]["signature"]["string_value"]
        folder = os.path.join(args["model_repository"], args["model_version"])
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            signature = tf.compat.v1.saved_model.load(self._session, ["serve"], folder).signature_def[name]
        self._inputs, self._outputs = sorted(signature.inputs), sorted(signature.outputs)
        self._call = self._session.make_callable(
            [signature.outputs[output].name for output in self._outputs],
            feed_list=[signature.inputs[input_].name for input_ in self._inputs],
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request by itself: a request that TensorFlow refuses does not fail the others."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            given = [triton.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs]
            answers = self._call(*given)
        except Exception as error:
            return triton.InferenceResponse(error=triton.TritonError(str(error)[:2000]))
        tensors = [triton.Tensor(name, np.asarray(answer)) for name, answer in zip(self._outputs, answers, strict=True)]
        return triton.InferenceResponse(tensors)

    def finalize(self) -> None:
        """Free the version's memory."""
        self._session.close()
