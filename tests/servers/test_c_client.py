"""Tests the C program of `examples/c_client` on a published version: the numbers that Python gets, to the bit."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from components.pusher.publish import publish
from tests.support.tf_examples import write_rows
from tests.support.worlds import World

SOURCE = Path(__file__).parents[2] / "examples/c_client/predict.c"
GCC = shutil.which("gcc")
HAS_LIBRARY = Path(tf.sysconfig.get_lib(), "libtensorflow_cc.so.2").exists()

pytestmark = [
    pytest.mark.skipif(GCC is None, reason="no gcc: apt-get install gcc libc6-dev"),
    pytest.mark.skipif(not HAS_LIBRARY, reason="this TensorFlow has no libtensorflow_cc.so.2"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compile the program as its README says."""
    binary = tmp_path_factory.mktemp("c") / "predict"
    library = tf.sysconfig.get_lib()
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", f"-I{library}/include", f"-L{library}", f"-Wl,-rpath,{library}"]
    libraries = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    subprocess.run([GCC, *flags, SOURCE, "-o", binary, *libraries], check=True, timeout=300)
    return binary


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    """Publish a version of several tables; return its folder, its signatures and rows."""
    folder, world = tmp_path_factory.mktemp("versions"), World.of(3)
    types = {"words": "float32", "strict": "float16", "items": "int8"}
    model = world.export(folder / "model", rows_dtype=types)
    published = publish(model, folder / "served", check=lambda path: {}).path
    saved = saved_model_pb2.SavedModel.FromString(Path(published, "saved_model.pb").read_bytes())
    return published, saved.meta_graphs[0].signature_def, world.requests(50)


def run(program, *arguments):
    quiet = {"PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run([program, *arguments], capture_output=True, text=True, env=quiet, timeout=300, check=False)


@pytest.mark.parametrize(
    ("signature", "output", "count"), [("serving_default", "probability", 50), ("embeddings", "path", 1)]
)
def test_c_program_gets_pythons_numbers_to_the_bit(program, version, tmp_path, signature, output, count):
    folder, signatures, rows = version
    answer = tf.saved_model.load(folder).signatures[signature]
    wanted = answer(examples=tf.constant(rows[:count]))[output].numpy()
    names = signatures[signature].inputs["examples"].name, signatures[signature].outputs[output].name
    done = run(program, folder, *names, write_rows(tmp_path / "rows", rows[:count]))
    assert done.returncode == 0, done.stderr
    got = np.array([line.split() for line in done.stdout.splitlines()], np.float32)
    assert got.shape == (count, wanted[0].size)
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("place", "given", "words"),
    [
        (0, "nowhere", "predict: nowhere: .*SavedModel"),
        (2, "nothing:0", "predict: nothing:0: is not in this version's graph"),
        (3, __file__, "predict: .*test_c_client.py: a record"),
    ],
)
def test_wrong_argument_of_the_c_program_is_named(program, version, tmp_path, place, given, words):
    folder, signatures, rows = version
    of = signatures["serving_default"]
    names = of.inputs["examples"].name, of.outputs["logit"].name
    arguments = [folder, *names, write_rows(tmp_path / "rows", rows)]
    arguments[place] = given
    done = run(program, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(words, done.stderr, re.DOTALL), done.stderr
