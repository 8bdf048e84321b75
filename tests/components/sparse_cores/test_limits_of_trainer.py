"""The trainer's limits of SparseCores are those that TableConfigGen wrote."""

import types

import pytest
import tensorflow as tf

from components.sparse_cores.table_limits import SPARSE_CORE_LIMITS_FILE, engine_arguments
from embedding_core.sparse_cores import Limits, SparseCoreEmbeddingConfig, limits_in_all_forms
from embedding_core.storage import sealed_json
from embedding_core.training_config import TrainingConfig

pytestmark = pytest.mark.tfx


def test_limits_are_read_from_the_table_configs(tmp_path):
    training = TrainingConfig(steps=1, strategy="simulated_tpu")
    assert engine_arguments(str(tmp_path), training) == {}
    sizes = {"buffer_per_core": 8, "buffer_per_chip": 16, "buffer_bytes_per_chip": 192, "samples_per_chip": 4}
    made = Limits(stack="a_b", tables=("a", "b"), max_ids_per_partition=5, max_unique_ids_per_partition=3, **sizes)
    (tmp_path / SPARSE_CORE_LIMITS_FILE).write_bytes(sealed_json({"forms": limits_in_all_forms([made], [made])}))
    assert engine_arguments(str(tmp_path), training) == {
        "sparse_core_embedding_config": SparseCoreEmbeddingConfig(
            max_ids_per_chip_per_sample=4, max_ids_per_table={"a_b": 5}, max_unique_ids_per_table={"a_b": 3}
        )
    }


@pytest.mark.parametrize("takes_limits", [True, False])
def test_real_tpu_gets_limits_if_tensorflows_class_takes_them(tmp_path, monkeypatch, takes_limits):
    monkeypatch.setattr(tf.tpu.experimental, "embedding", types.SimpleNamespace())
    if takes_limits:
        tf.tpu.experimental.embedding.SparseCoreEmbeddingConfig = None
    (tmp_path / SPARSE_CORE_LIMITS_FILE).write_bytes(sealed_json({"forms": {"tensorflow": {}}}))
    assert bool(engine_arguments(str(tmp_path), TrainingConfig(steps=1, strategy="tpu"))) == takes_limits
