"""Runs the embedding layer tests of the installed TensorFlow Recommenders against this project's layers.

    python tests/tfrs_tests/run.py [tf_keras | keras]

The test files are unmodified: only names are bound to ours; for `keras`, Keras 3, also those of Keras' classes. Prints
the tests that do not pass, and for each file "<file>: passed P of N".
"""

import contextlib
import importlib
import io
import os
import sys
import types
import unittest
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TensorFlow Recommenders needs it
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[2]))
LAYER = "tensorflow_recommenders.layers.embedding.tpu_embedding_layer_test"
PARTIAL = "tensorflow_recommenders.experimental.layers.embedding.partial_tpu_embedding_test"


def point_at_ours():
    """Replace the layers that the tests use by ours; return the modules of tests."""
    import tensorflow_recommenders as tfrs
    from tensorflow_recommenders.layers.embedding import tpu_embedding_layer

    from embedding_core.layer import PartialTPUEmbedding, TPUEmbedding, translate_keras_optimizer

    tpu_embedding_layer.TPUEmbedding = tfrs.layers.embedding.TPUEmbedding = TPUEmbedding
    tpu_embedding_layer.translate_keras_optimizer = translate_keras_optimizer
    tfrs.experimental.layers.embedding.PartialTPUEmbedding = PartialTPUEmbedding
    return [importlib.import_module(name) for name in (LAYER, PARTIAL)]


def point_at_keras_3():
    """Replace the layer by ours for Keras 3, and `tf.keras` in its tests by Keras 3; return the module of tests.

    The tests of PartialTPUEmbedding do not apply: there is none for Keras 3.
    """
    import keras
    import tensorflow as tf
    from tensorflow_recommenders.layers.embedding import tpu_embedding_layer

    from embedding_core.layer import keras3

    def new_input(shape, sparse=False, ragged=False, **arguments):
        """Make an input; Keras 3 wants the whole rank of sparse and ragged ids."""
        shape = (None,) if sparse or ragged else shape
        return keras.Input(shape, sparse=sparse, ragged=ragged, **arguments)

    def new_model(inputs, outputs):
        """Make a model; Keras 3 refuses an output that is an input."""
        return keras.Model(inputs, tf.nest.map_structure(keras.layers.Identity(), outputs))

    class TensorFlow(types.ModuleType):
        def __getattr__(self, name):
            return getattr(tf, name)

    tests = importlib.import_module(LAYER)
    tests.tf = TensorFlow("tensorflow")
    tests.tf.keras = types.SimpleNamespace(
        Input=new_input, Model=new_model, optimizers=types.SimpleNamespace(legacy=keras.optimizers)
    )
    tpu_embedding_layer.TPUEmbedding = keras3.TPUEmbedding
    return [tests]


def outcome(module):
    """Run the tests of a module; return how many ran, and the problems of those that did not pass."""
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()):
        unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    problems = [f"{test.id()}: {text}" for test, text in result.errors + result.failures]
    return result.testsRun - len(result.skipped), problems  # skipped: `test_session`, not a test


def main():
    """Run the tests and print the report; exit with 1 if a test fails."""
    failed = False
    for module in point_at_keras_3() if sys.argv[1:] == ["keras"] else point_at_ours():
        total, problems = outcome(module)
        name = module.__name__.rpartition(".")[2]
        print(*problems, f"{name}: passed {total - len(problems)} of {total}", sep="\n", flush=True)
        failed = failed or bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
