"""Runs the embedding layer tests of the installed TensorFlow Recommenders against this project's layers.

    python tests/tfrs_tests/run.py

The test files are unmodified: only the names of the layers are bound to ours. Prints the tests that do not pass, and
for each file "<file>: passed P of N".
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
    """Replace the layers that the tests use by ours."""
    import tensorflow_recommenders as tfrs
    from tensorflow_recommenders.layers.embedding import tpu_embedding_layer

    from embedding_core.layer import PartialTPUEmbedding, TPUEmbedding, translate_keras_optimizer

    tpu_embedding_layer.TPUEmbedding = tfrs.layers.embedding.TPUEmbedding = TPUEmbedding
    tpu_embedding_layer.translate_keras_optimizer = translate_keras_optimizer
    tfrs.experimental.layers.embedding.PartialTPUEmbedding = PartialTPUEmbedding


def outcome(module):
    """Run the tests of a module; return how many ran, and the problems of those that did not pass."""
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()):
        unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    problems = [f"{test.id()}: {text}" for test, text in result.errors + result.failures]
    return result.testsRun - len(result.skipped), problems  # skipped: `test_session`, not a test


def main():
    """Run the tests and print the report; exit with 1 if a test fails."""
    point_at_ours()
    failed = False
    for name in MODULES:
        total, problems = outcome(importlib.import_module(name))
        print(*problems, f"{name.rpartition('.')[2]}: passed {total - len(problems)} of {total}", sep="\n", flush=True)
        failed = failed or bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
