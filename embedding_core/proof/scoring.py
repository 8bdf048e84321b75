"""Loads a SavedModel with TensorFlow alone, scores inputs and writes the outputs; runs as a program.

``parity.score_signatures`` starts it isolated (``python -I``), like a server without this project: a
SavedModel that needs this project, Keras or TFT to load fails here rather than in production.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

# A server has none of these: loading must not import one.
_FOREIGN = ("embedding_core", "components", "pipelines", "tensorflow_transform", "tfx", "tfx_bsl")


def end_with_parent() -> None:
    """End this process when the parent closes its end of standard input, or is killed."""

    def wait() -> None:
        os.read(0, 1)  # not through `sys.stdin`, whose lock would be held while the interpreter ends
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _read(folder: Path) -> dict[str, Any]:
    """Read the input tensors that the parent wrote, by name."""
    import tensorflow as tf

    dtypes = json.loads((folder / "inputs.json").read_text())
    return {
        name: tf.io.parse_tensor((folder / f"{number}.in").read_bytes(), getattr(tf, dtype))
        for number, (name, dtype) in enumerate(dtypes.items())
    }


def _score(signature: Any, inputs: dict[str, Any], batch_size: int) -> dict[str, Any]:
    """Compute the signature's outputs over all rows, batch by batch."""
    import tensorflow as tf

    rows = len(next(iter(inputs.values())))
    batches = [
        signature(**{name: value[start : start + batch_size] for name, value in inputs.items()})
        for start in range(0, rows, batch_size)
    ]
    return {name: tf.concat([batch[name] for batch in batches], axis=0) for name in batches[0]}


def main(model: str, batch_size: str, *requests: str) -> None:
    """Score requests with the SavedModel at `model`: each request is a folder of inputs, named after its signature."""
    sys.modules["keras"] = sys.modules["tf_keras"] = None  # type: ignore[assignment]  # a server has no Keras either
    gc.disable()  # while TensorFlow loads, a collection would find nothing to free
    import tensorflow as tf

    gc.freeze()
    gc.enable()
    loaded = tf.saved_model.load(model)
    for request in map(Path, requests):
        if request.name not in loaded.signatures:
            sys.exit(f"the SavedModel has no signature {request.name!r}: it has {', '.join(loaded.signatures)}.")
        _answer(loaded.signatures[request.name], request, int(batch_size))
    foreign = [name for name in _FOREIGN if name in sys.modules]
    if foreign:
        sys.exit(f"loading the SavedModel imported {foreign[0]!r}: it must load with TensorFlow alone.")


def _answer(signature: Any, folder: Path, batch_size: int) -> None:
    import tensorflow as tf

    inputs = _read(folder)
    if "" in inputs:  # the signature has a single input, whose name the caller does not know
        inputs = {next(iter(signature.structured_input_signature[1])): inputs[""]}
    outputs = _score(signature, inputs, batch_size)
    for number, value in enumerate(outputs.values()):
        (folder / f"{number}.out").write_bytes(tf.io.serialize_tensor(value).numpy())
    (folder / "outputs.json").write_text(json.dumps({name: value.dtype.name for name, value in outputs.items()}))


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
