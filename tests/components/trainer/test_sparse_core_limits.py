"""The trainer's limits of SparseCores are those that TableConfigGen wrote."""

import types

import pytest

from embedding_core.sparsecore import Limits, SparseCoreEmbeddingConfig, limits_in_all_forms
from embedding_core.storage import sealed_json

pytestmark = pytest.mark.tfx


def test_limits_are_read_from_the_table_configs(tmp_path):
    from components.artifact_files import SPARSE_CORE_LIMITS_FILE
    from components.trainer.run import _limits

    settings = types.SimpleNamespace(table_configs=str(tmp_path))
    assert _limits(settings) is None
    sizes = {"buffer_per_core": 8, "buffer_per_chip": 16, "buffer_bytes_per_chip": 192, "samples_per_chip": 4}
    made = Limits(stack="a_b", tables=("a", "b"), max_ids_per_partition=5, max_unique_ids_per_partition=3, **sizes)
    (tmp_path / SPARSE_CORE_LIMITS_FILE).write_bytes(sealed_json({"forms": limits_in_all_forms([made], [made])}))
    assert _limits(settings) == SparseCoreEmbeddingConfig(
        max_ids_per_chip_per_sample=4, max_ids_per_table={"a_b": 5}, max_unique_ids_per_table={"a_b": 3}
    )
