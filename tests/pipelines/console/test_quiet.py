from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.light

ROOT = Path(__file__).parents[3]


def _run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    return done.stdout, done.stderr


def test_warnings_of_others_are_silent_and_errors_are_not():
    code = (
        "from pipelines.console.quiet import silence; silence(); import logging, warnings;"
        "warnings.warn('chatter', FutureWarning); logging.getLogger('absl').warning('chatter');"
        "logging.getLogger('tensorflow').warning('chatter'); logging.getLogger('tfx').error('broken')"
    )
    assert _run(code)[1].strip() == "broken"


def test_what_the_user_set_stays():
    code = (
        "from pipelines.console.quiet import silence; silence(); import os; print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    assert _run(code, TF_CPP_MIN_LOG_LEVEL="0")[0].strip() == "0"


@pytest.mark.slow
def test_tensorflow_starts_without_a_line():
    code = (
        "from pipelines.console.quiet import *; silence(); load_tensorflow();"
        "import tensorflow as tf; tf.constant(1) + 1"
    )
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    assert _run(code, **environment)[1] == ""


def test_lines_that_are_no_start_up_lines_are_kept(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import os, types\nos.write(2, b'E cuda_dnn.cc:1 Unable to register cuDNN factory: x\\nE real trouble\\n')\n"
        "config = types.SimpleNamespace(list_physical_devices=lambda kind: [])"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pipelines.console.quiet import *; load_tensorflow()"
    )
    assert _run(code)[1] == "E real trouble\n"
