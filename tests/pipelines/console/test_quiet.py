import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.light

ROOT = Path(__file__).parents[3]


def _run(code, **environment):
    command, given = [sys.executable, "-c", code], {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


def test_warnings_are_silent_and_what_the_user_set_stays():
    code = (
        "from pipelines.console.quiet import silence; silence(); import logging, os, warnings;"
        "warnings.warn('chatter', FutureWarning); logging.getLogger('absl').warning('chatter');"
        "logging.getLogger('tensorflow').warning('chatter'); logging.getLogger('tfx').error('broken');"
        "print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    out, err = _run(code, TF_CPP_MIN_LOG_LEVEL="0")
    assert (out.strip(), err.strip()) == ("0", "broken")


def test_lines_that_are_no_start_up_lines_are_kept(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import os, types\nos.write(2, b'E cuda_dnn.cc:1 Unable to register cuDNN factory: x\\nE real trouble\\n')\n"
        "config = types.SimpleNamespace(list_physical_devices=lambda kind: [])"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pipelines.console.quiet import *; load_tensorflow()"
    )
    assert _run(code)[1] == "E real trouble\n"
