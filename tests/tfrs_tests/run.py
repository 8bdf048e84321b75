"""Run TensorFlow Recommenders' tests of its embedding layers, as installed, against this project's layers.

    python tests/tfrs_tests/run.py

Unmodified: only the names of the layers are pointed at ours. Prints the tests that do not pass, and for
each file "<file>: passed P of N".
"""

import contextlib
import importlib
import io
import os
import sys
import unittest
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[2]))
MODULES = (
    "tensorflow_recommenders.layers.embedding.tpu_embedding_layer_test",
    "tensorflow_recommenders.experimental.layers.embedding.partial_tpu_embedding_test",
)


def point_at_ours():
    """Put our layers where the tests look for theirs."""
    import tensorflow_recommenders as tfrs
    from tensorflow_recommenders.layers.embedding import tpu_embedding_layer

    from embedding_core.layer import PartialTPUEmbedding, TPUEmbedding, translate_keras_optimizer

    tpu_embedding_layer.TPUEmbedding = tfrs.layers.embedding.TPUEmbedding = TPUEmbedding
    tpu_embedding_layer.translate_keras_optimizer = translate_keras_optimizer
    tfrs.experimental.layers.embedding.PartialTPUEmbedding = PartialTPUEmbedding


def outcome(module):
    """How many tests of a module ran, and the problems of those that did not pass."""
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()):
        unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    problems = [f"{test.id()}: {text}" for test, text in result.errors + result.failures]
    return result.testsRun - len(result.skipped), problems  # skipped: the `test_session` of tf.test.TestCase, no test


def main():
    """Run and report; fails where a test does."""
    point_at_ours()
    failed = False
    for name in MODULES:
        total, problems = outcome(importlib.import_module(name))
        print(*problems, f"{name.rpartition('.')[2]}: passed {total - len(problems)} of {total}", sep="\n", flush=True)
        failed = failed or bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
