"""Runs TensorFlow Recommenders' own tests of its layers, from the installed wheel, on our layers."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_tensorflow_recommenders_tests_pass():
    command = [sys.executable, str(Path(__file__).with_name("run.py"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "tpu_embedding_layer_test: passed 12 of 12",
        "partial_tpu_embedding_test: passed 4 of 4",
    ]
