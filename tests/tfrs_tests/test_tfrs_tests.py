"""Runs TensorFlow Recommenders' own tests of its layers, from the installed wheel, on our layers."""

import subprocess
import sys
from pathlib import Path

import pytest

LAYER, PARTIAL = "tpu_embedding_layer_test: passed 12 of 12", "partial_tpu_embedding_test: passed 4 of 4"


# The 4 tests of PartialTPUEmbedding do not apply to Keras 3, for which there is no such layer.
@pytest.mark.slow
@pytest.mark.parametrize(("package", "lines"), [("tf_keras", [LAYER, PARTIAL]), ("keras", [LAYER])])
def test_tensorflow_recommenders_tests_pass(package, lines):
    command = [sys.executable, str(Path(__file__).with_name("run.py")), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == lines
