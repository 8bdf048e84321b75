"""Writes files with one version of Python and TensorFlow, or checks files that another version wrote.

    python exchange.py write FOLDER
    python exchange.py read FOLDER [PART ...]

`write` writes a layer checkpoint for each optimizer, the checkpoint of a stopped training, an EmbeddingCheckpoint,
vocabularies, two exported models and a Keras file, and the values that each of them contains or computes. `read` reads
these files and fails if the values differ; results of new computations may differ by rounding. `test_interchange.py`
runs this script, with the folders of the test modules that it imports on PYTHONPATH.
"""

import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import tensorflow as tf
import test_checkpoint_export
import test_export
import tf_keras

from embedding_core.checkpoint import BundleReader, CheckpointSeries, load_checkpoint_into, verify, write_tables
from embedding_core.engines import HostEngine
from embedding_core.layer import TPUEmbedding
from embedding_core.model_inputs import model_inputs
from embedding_core.serving import export_embeddings, export_model
from embedding_core.training import train
from embedding_core.vocabulary import load_vocabulary, save_vocabulary
from tests.support.training_jobs import job_in
from tests.support.vocabularies import vocabulary_of

tpu = tf.tpu.experimental.embedding
STOPPED, STEPS = 20, 40
RESUMED = {"checkpoint_every": STOPPED, "eval_every": STOPPED, "decay": "linear"}
TOKENS = [b"a", b"\xff\xfe", "žluť".encode()]


class _StoppedError(Exception):
    pass


OPTIMIZERS = {
    "sgd": lambda: tpu.SGD(0.1),
    "adagrad": lambda: tpu.Adagrad(0.1, clipvalue=0.5),
    "momentum": lambda: tpu.AdagradMomentum(0.1, momentum=0.9, use_nesterov=True),
    "adam": lambda: tpu.Adam(0.05),
    "ftrl": lambda: tpu.FTRL(0.1, l1_regularization_strength=0.01),
    "keras adam": lambda: tf_keras.optimizers.Adam(0.05),
}


def layers(folder):
    """For each optimizer, yield its name, a new layer, its checkpoint, and the checkpoint's path."""
    for name, optimizer in OPTIMIZERS.items():
        table = tpu.TableConfig(11, 4, optimizer=optimizer(), combiner="sqrtn", name="t")
        layer = TPUEmbedding({"f": tpu.FeatureConfig(table)}, None, table_update="engine")
        path = str(folder / "layers" / name.replace(" ", "_") / "ckpt")
        yield name, layer, tf.train.Checkpoint(layer=layer), path


def train_layer(layer, steps):
    generator = np.random.default_rng(0)
    for _ in range(steps):
        ids = tf.RaggedTensor.from_tensor(generator.integers(0, 11, [8, 3]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer({"f": ids})["f"]))
        tape.gradient(loss, layer.trainable_variables)


def write_layer_checkpoints(folder):
    values = {}
    for name, layer, checkpoint, path in layers(folder):
        train_layer(layer, 5)
        checkpoint.write(path)
        values |= {f"{name}/{key}": variable.numpy() for key, variable in layer.table_variables.items()}
    np.savez(folder / "layers.npz", **values)


def read_layer_checkpoints(folder):
    expected = np.load(folder / "layers.npz")
    for name, layer, checkpoint, path in layers(folder):
        train_layer(layer, 1)
        checkpoint.read(path).assert_existing_objects_matched()
        for key, variable in layer.table_variables.items():
            np.testing.assert_array_equal(variable.numpy(), expected[f"{name}/{key}"], err_msg=f"{name} {key}")


def stop(step, *_):
    if step > STOPPED:
        raise _StoppedError


def stopped_job(place):
    return dataclasses.replace(job_in(place, **RESUMED), arguments={"hidden_units": [8], "dropout": 0.2})


def write_training(folder):
    """Write the checkpoint and tables of a training at step 20, and the tables of the same training at its end."""
    place = folder / "training"
    place.mkdir()
    job = stopped_job(place)
    try:
        train(job, str(folder / "stopped"), resume_folder=str(place / "series"), progress=stop)
    except _StoppedError:
        shutil.rmtree(folder / "stopped")
    CheckpointSeries(place / "series").keep([STOPPED])
    np.savez(folder / "stopped.npz", **tables_of(CheckpointSeries(place / "series").verified(STOPPED).prefix))
    result = train(job, str(folder / "whole"))
    np.savez(folder / "whole.npz", **tables_of(result.checkpoint))
    shutil.rmtree(folder / "whole")


def tables_of(prefix):
    reader = BundleReader(prefix)
    return {key.replace("/", "|"): reader.tensor(key).numpy() for key in reader.entries if "/words" in key}


def read_stopped(folder):
    """Check that the checkpoint of the stopped training contains the tables that were written."""
    series = CheckpointSeries(folder / "training" / "series")
    expected = np.load(folder / "stopped.npz")
    for key, value in tables_of(series.verified(STOPPED).prefix).items():
        np.testing.assert_array_equal(value, expected[key], err_msg=key)


def read_training(folder):
    """Resume the stopped training; its tables equal those of the training without a stop, within rounding."""
    with tempfile.TemporaryDirectory() as copy:
        place = Path(shutil.copytree(folder / "training", copy, dirs_exist_ok=True))
        job = stopped_job(place)
        result = train(job, str(place / "continued"), resume_folder=str(place / "series"))
        assert (result.history.facts["resumed_at"], result.step) == (STOPPED, STEPS)
        found = tables_of(result.checkpoint)
    expected = np.load(folder / "whole.npz")
    for key, value in found.items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-5, atol=1e-6, err_msg=key)
    print(f"trained on: tables differ by {max(np.abs(found[key] - expected[key]).max() for key in found):.2g} at most")


def words():
    return vocabulary_of(TOKENS, "words", [2**40, 2, 1], features={})


def write_embeddings(folder):
    """Write an EmbeddingCheckpoint with a vocabulary, and the SavedModel that serves it."""
    engine = HostEngine(test_checkpoint_export.CONFIG, seed=3)
    tables = {key: variable.numpy() for key, variable in engine.table_variables.items()}
    np.savez(folder / "embeddings.npz", **tables)
    write_tables(
        folder / "checkpoint",
        test_checkpoint_export.CONFIG,
        lambda key: [(0, tables[key])],
        step=7,
        vocabularies={"words": words()},
    )
    (folder / "vocabularies").mkdir()
    save_vocabulary(words(), folder / "vocabularies")
    export_embeddings(folder / "checkpoint", folder / "embeddings", features=test_checkpoint_export.NAMES)
    np.savez(folder / "vectors.npz", **answers(folder / "embeddings", test_checkpoint_export.ROWS))


def read_embeddings(folder):
    expected = np.load(folder / "embeddings.npz")
    manifest = verify(folder / "checkpoint")
    variables = HostEngine(manifest.config, seed=4).table_variables
    load_checkpoint_into(folder / "checkpoint", variables, manifest.config, vocabulary_digests=manifest.vocabularies)
    for key, variable in variables.items():
        np.testing.assert_array_equal(variable.numpy(), expected[key], err_msg=key)
    for place in ("vocabularies", "checkpoint/vocabularies"):
        vocabulary = load_vocabulary(folder / place, "words")
        assert vocabulary.tokens.to_pylist() == TOKENS
        assert (vocabulary.counts.tolist(), vocabulary.digest) == ([2**40, 2, 1], words().digest)
    np.testing.assert_equal(
        answers(folder / "embeddings", test_checkpoint_export.ROWS), dict(np.load(folder / "vectors.npz"))
    )


def answers(folder, examples):
    """Return what the `serving_default` signature of a SavedModel computes for serialized examples."""
    answer = tf.saved_model.load(str(folder)).signatures["serving_default"](tf.constant(examples))
    return {key: value.numpy() for key, value in answer.items()}


def write_model(folder):
    """Export a model as a pipeline exports the one that it pushes, and write its outputs."""
    for name, tokens in test_export.TOKENS.items():
        (folder / f"{name}.txt").write_bytes(b"".join(token + b"\n" for token in tokens))
    tf_keras.utils.set_random_seed(5)
    embeddings, dense = model_inputs(test_export.CONFIG, test_export.DENSE.names)
    flat = [tf_keras.layers.Flatten()(value) for value in embeddings.values()]
    logit = tf_keras.layers.Dense(1)(tf_keras.layers.Concatenate()([*flat, *dense.values()]))
    export_model(
        folder / "model",
        config=test_export.CONFIG,
        tables=HostEngine(test_export.CONFIG, seed=3, with_slots=False).table_variables,
        vocabularies={name: folder / f"{name}.txt" for name in test_export.TOKENS},
        model=tf_keras.Model([embeddings, dense], logit),
        dense=test_export.DENSE,
    )
    np.savez(folder / "answers.npz", **answers(folder / "model", test_export.EXAMPLES))


def read_model(folder):
    """Check the outputs of the exported model; its dense part may round differently in the last bit."""
    for key, value in answers(folder / "model", test_export.EXAMPLES).items():
        expected = np.load(folder / "answers.npz")[key]
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7, err_msg=key)
        finite = np.isfinite(expected)
        print(f"exported model: {key} differs by {np.abs(value[finite] - expected[finite]).max():.2g} at most")


def keras_ids():
    return {"user": np.arange(8, dtype=np.int64)}


def write_keras_file(folder):
    users = tpu.TableConfig(vocabulary_size=8, dim=4, combiner="mean", name="users")
    layer = TPUEmbedding({"user": tpu.FeatureConfig(users)}, tpu.Adagrad(0.5), table_update="engine")
    user = tf_keras.Input((), dtype=tf.int64, name="user")
    model = tf_keras.Model({"user": user}, tf_keras.layers.Dense(1)(layer({"user": user})["user"]))
    model.compile("adam", "mse")
    model.fit(keras_ids(), np.ones(8), batch_size=4, epochs=2, verbose=0)
    model.save(folder / "model.keras")
    np.save(folder / "keras.npy", model.predict(keras_ids(), verbose=0))


def read_keras_file(folder):
    """Check the predictions of the Keras file. A tf_keras without the InputLayer argument `optional` may reject it."""
    try:
        model = tf_keras.models.load_model(folder / "model.keras")
    except TypeError as error:
        if "Unrecognized keyword arguments: ['optional']" not in str(error):
            raise
        print("tf_keras refuses the Keras file, which a newer one wrote")
        return
    found = model.predict(keras_ids(), verbose=0)
    np.testing.assert_allclose(found, np.load(folder / "keras.npy"), rtol=1e-6, atol=1e-7)


def write(folder):
    """Write everything into a new folder."""
    folder.mkdir(parents=True)
    for part in (write_layer_checkpoints, write_training, write_embeddings, write_model, write_keras_file):
        part(folder)
    versions = {"python": sys.version.split()[0], "tensorflow": tf.__version__, "numpy": np.__version__}
    (folder / "versions.json").write_text(json.dumps({**versions, "pyarrow": pa.__version__}))


READ = {
    "layers": read_layer_checkpoints,
    "stopped": read_stopped,
    "training": read_training,
    "embeddings": read_embeddings,
    "model": read_model,
    "keras": read_keras_file,
}


def read(folder, *parts):
    """Read the given parts of a folder, or all of them."""
    for part in parts or READ:
        READ[part](folder)
        print(f"{part}: as written")


if __name__ == "__main__":
    command, path, *parts = sys.argv[1:]
    {"write": write, "read": read}[command](Path(path), *parts)
