"""TableHealth on checkpoints of a made-up table."""

import json
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pytest
from tfx.types import standard_artifacts

from components.artifacts import EmbeddingCheckpoint
from components.table_health.executor import Executor
from embedding_core.checkpoint import write_tables
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.health import HEALTH_FILE
from embedding_core.optimizers import Adagrad
from tests.support.artifacts import artifact
from tests.support.vocabularies import vocabulary_of

pytestmark = pytest.mark.tfx

TOKENS = [b"t%d" % number for number in range(100)]
ROWS = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="items", vocabulary="word", vocabulary_size=100, dim=8, optimizer=Adagrad(learning_rate=0.1)),
    ),
    features=(FeatureConfig(name="item", table="items"),),
)


def checkpoint(folder, name, rows, steps, private=False):
    """Write the rows, with slots that grew in each step."""
    written = artifact(EmbeddingCheckpoint, folder / name, made=False)
    words = vocabulary_of(TOKENS, "word", [1] * 100, total_count=110, distinct=110, private=private)
    values = {"items": rows, "items/accumulators": np.full_like(rows, 0.1 + steps)}
    write_tables(written.uri, CONFIG, lambda key: [(0, values[key])], step=steps, vocabularies={"word": words})
    return written


def judged(folder, rows, before=None, private=False, **health):
    inputs = {"embedding_checkpoint": [checkpoint(folder, "now", rows, 2, private)]}
    if before is not None:
        inputs["base_checkpoint"] = [checkpoint(folder, "base", before, 1)]
    blessing = artifact(standard_artifacts.ModelBlessing, folder / "blessing", made=False)
    properties = {"rules": json.dumps(health), "seed": 1}
    Executor().Do(inputs, {"blessing": [blessing]}, properties)
    with open(f"{blessing.uri}/{HEALTH_FILE}") as file:
        return blessing, json.load(file)


def test_healthy_table_is_blessed(tmp_path):
    blessing, health = judged(tmp_path, ROWS + np.float32(0.01), ROWS)
    assert blessing.get_int_custom_property("blessed") == 1
    assert blessing.get_string_custom_property("reason") == ""
    assert health["findings"] == []
    assert health["tables"]["items"]["values"]["frozen"] == 0.0
    recorded = json.loads(blessing.get_string_custom_property("health"))
    assert recorded["tables"]["items"] == pytest.approx(health["tables"]["items"]["values"])
    assert os.path.isfile(f"{blessing.uri}.lineage.json")


def test_unchanged_rows_are_refused_with_their_tokens(tmp_path):
    blessing, health = judged(tmp_path, ROWS, ROWS)
    assert blessing.get_int_custom_property("blessed") == 0
    reason = blessing.get_string_custom_property("reason")
    assert "did not change since the base of table 'items' is 1: it must be at most 0.1 (`health.max_frozen`)" in reason
    assert "'t0', 't1'" in reason
    assert [finding["figure"] for finding in health["findings"]] == ["frozen", "frozen_rows"]
    assert json.loads(blessing.get_string_custom_property("health"))["findings"] == [
        {key: finding[key] for key in ("table", "figure", "value", "bound", "tokens")} for finding in health["findings"]
    ]


def test_private_tokens_are_never_written(tmp_path):
    blessing, _ = judged(tmp_path, ROWS, ROWS, private=True)
    written = (tmp_path / "blessing" / HEALTH_FILE).read_text() + blessing.get_string_custom_property("health")
    assert "sha256:" in written
    assert '"t0"' not in written
    assert "'t0'" not in written


def test_warning_only_reports(tmp_path):
    blessing, health = judged(tmp_path, ROWS, ROWS, action="warn")
    assert blessing.get_int_custom_property("blessed") == 1
    assert "max_frozen" in blessing.get_string_custom_property("reason")
    assert len(health["findings"]) == 2


def test_without_a_base_only_the_table_itself_is_judged(tmp_path):
    rows = ROWS.copy()
    rows[:10] = 0
    _, health = judged(tmp_path, rows)
    assert [finding["figure"] for finding in health["findings"]] == ["zero"]
    assert not health["tables"]["items"]["has_base"]
