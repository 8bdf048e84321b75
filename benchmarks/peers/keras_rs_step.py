"""Times a training step of keras-rs' DistributedEmbedding; `benchmarks.keras_layer` runs it in keras-rs' own Python.

    KERAS_BACKEND=tensorflow python keras_rs_step.py IDS.npz OPTIMIZER DIM

Builds the model, warms up, and prints the versions. Then, for every line of standard input, it takes a step on each
batch and prints the mean CPU milliseconds of a step. The ids must be one per example. The step is `train_on_batch`.
"""

import sys

import keras
import keras_rs
import numpy as np
from turns import take_turns

BATCH = 4096


def model_of(rows, optimizer, dim):
    """Return a compiled model whose output is its loss: the sum of the features' mean activations."""
    features = {
        f"f{place}": keras_rs.layers.FeatureConfig(
            name=f"f{place}",
            table=keras_rs.layers.TableConfig(
                name=f"t{place}",
                vocabulary_size=int(size),
                embedding_dim=dim,
                initializer="zeros",
                optimizer=optimizer,
                placement="default_device",
            ),
            input_shape=(BATCH,),
            output_shape=(BATCH, dim),
        )
        for place, size in enumerate(rows)
    }
    layer = keras_rs.layers.DistributedEmbedding(features)
    inputs = {name: keras.Input(batch_shape=(BATCH,), dtype="int32", name=name) for name in features}
    activations = layer(inputs)
    means = [keras.ops.mean(values, axis=-1, keepdims=True) for values in activations.values()]
    model = keras.Model(inputs, keras.ops.sum(keras.ops.concatenate(means, 1), 1))
    model.compile(optimizer, loss=lambda _, found: found)
    return model


def main(file, optimizer, dim):
    """Build the model and its batches; time the steps in turn with the other variants, as `take_turns` describes."""
    data = np.load(file)
    rows = data["rows"]
    kind = {"sgd": keras.optimizers.SGD, "adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}[optimizer]
    model = model_of(rows, kind(0.01), dim)
    batches = [
        {f"f{place}": ids.astype("int32") for place, ids in enumerate(batch)}
        for batch in data["ids"].reshape(-1, len(rows), BATCH)
    ]
    labels = np.zeros(BATCH, "float32")

    def steps():
        for batch in batches:
            model.train_on_batch(batch, labels)

    what = ["keras-rs", keras_rs.__version__, "keras", keras.__version__, keras.backend.backend()]
    take_turns(what, steps, len(batches))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
