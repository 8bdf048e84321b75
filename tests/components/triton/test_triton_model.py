"""Tests the configuration of Triton that is written beside versions; `tests/servers` runs Triton on it."""

import pytest
import tensorflow as tf

from components.pusher.publish import publish
from components.triton.triton_model import write_triton_model
from embedding_core.errors import ConfigError


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder, module = tmp_path_factory.mktemp("versions"), tf.Module()
    module.variable = tf.Variable(1.0)

    def raw(amount, tags):
        return {"logit": amount * module.variable, "tags": tags}

    columns = tf.TensorSpec([None], tf.float32, name="amount"), tf.TensorSpec([None, None], tf.string, name="tags")
    signatures = {
        "raw": tf.function(raw).get_concrete_function(*columns),
        "counters": tf.function(lambda: {"count": tf.zeros([1])}).get_concrete_function(),
        "apply_delta": tf.function(lambda number: {"applied": tf.reshape(number, [1])}).get_concrete_function(
            tf.TensorSpec([], tf.int64, name="number")
        ),
    }
    tf.saved_model.save(module, str(folder / "model"), signatures=signatures)
    publish(folder / "model", folder / "taxi", check=lambda path: {}, clock=lambda: 7.0)
    return folder / "taxi"


def test_configuration_has_every_tensor_of_the_signature(base, tmp_path):
    path = write_triton_model(base, "raw", tmp_path / "backends")
    assert path == str(base / "config.pbtxt")
    assert (base / "config.pbtxt").read_text().splitlines()[1:] == [
        'backend: "tfx_embeddings"',
        "version_policy { latest { num_versions: 1 } }",
        'parameters { key: "signature" value { string_value: "raw" } }',
        'input { name: "amount" data_type: TYPE_FP32 dims: [-1] }',
        'input { name: "tags" data_type: TYPE_STRING dims: [-1, -1] }',
        'output { name: "logit" data_type: TYPE_FP32 dims: [-1] }',
        'output { name: "tags" data_type: TYPE_STRING dims: [-1, -1] }',
    ]
    assert "class TritonPythonModel" in (tmp_path / "backends/tfx_embeddings/model.py").read_text()
    assert sorted(path.name for path in base.iterdir()) == [".versions.lock", "7", "config.pbtxt"]


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("query", "`--signature` is 'query': version 7 has apply_delta, counters, raw"),
        ("counters", "'counters', which has no input"),
        ("apply_delta", "input 'number' is a scalar"),
    ],
)
def test_signature_that_triton_cannot_answer_is_refused(base, signature, words):
    with pytest.raises(ConfigError, match=words):
        write_triton_model(base, signature)


def test_folder_without_a_version_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no version"):
        write_triton_model(tmp_path, "raw")
    (tmp_path / "5").mkdir()
    with pytest.raises(ConfigError, match=r"/5' is not a version: it has no 'saved_model.pb'"):
        write_triton_model(tmp_path, "raw")


def test_backends_that_cannot_be_written_are_named(base, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"Triton's files cannot be written .*file"):
        write_triton_model(base, "raw", tmp_path / "file")
