"""Requests for the best candidates of a two-tower model, of which the row of one user was changed."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pytest
import tf_keras

from embedding_core.engines import HostEngine
from embedding_core.model_inputs import build_model
from embedding_core.serving import export_model
from embedding_core.shadow.replay import VersionProcess, replay
from embedding_core.shadow.request_rows import Visibility
from embedding_core.shadow.shadow_rules import ShadowRules
from embedding_core.top_k_config import TopK
from tests.embedding_core.serving.test_two_tower_signatures import CONFIG, ITEMS, USERS
from tests.embedding_core.shadow.small_versions import request


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Return two versions: in the second one, the row of u2 has the opposite sign."""
    folder = tmp_path_factory.mktemp("two_tower")
    files = {"users": folder / "users.txt", "items": folder / "items.txt"}
    for name, tokens in (("users", USERS), ("items", ITEMS)):
        files[name].write_bytes(b"".join(token + b"\n" for token in tokens))
    tf_keras.utils.set_random_seed(1)
    towers = {"query_features": ["user"], "candidate_features": ["item"]}
    model = build_model("pipelines.models.two_tower", CONFIG, (), towers)
    tables = HostEngine(CONFIG, seed=4, with_slots=False).embedding_tables
    for name in ("old", "new"):
        export_model(
            folder / name, config=CONFIG, tables=tables, vocabularies=files, model=model, top_k=TopK(k=5),
            signatures=["top_k"],
        )  # fmt: skip
        tables["users"].scatter_nd_update([[2]], -tables["users"].numpy()[2:3])
    return str(folder / "old"), str(folder / "new")


def test_changed_user_has_other_candidates_and_nobody_else_has(versions):
    asked = [request(1, "top_k", user=np.array(USERS, object)), request(2, "top_k", user=np.array([b"u0"], object))]
    rules = ShadowRules.from_mapping({"slices": ["user"], "outputs": {"tokens": {"min_overlap": 0.99}}})
    with VersionProcess(versions[0]) as old, VersionProcess(versions[1]) as new:
        report = replay((old, new), asked, rules, Visibility(frozenset({"user"}), answers=True))
    assert [check.name for check in report.checks if not check.met] == ["overlap of top_k/tokens"]
    figures = report.to_json()
    (worst,) = figures["worst"]["top_k/tokens"]
    assert worst["request"] == {"user": "u2"}
    assert worst["place"] == "log, record 1, row 3"
    assert set(worst["old"].split(", ")) < {item.decode() for item in ITEMS}
    tokens = figures["outputs"]["top_k/tokens"]
    assert set(tokens["overlap"]) == {"1", "5"}
    assert tokens["mean"] == pytest.approx(worst["difference"] / 7)
    changed = {one["value"] for one in figures["slices"] if one["output"] == "top_k/tokens" and one["max"]}
    assert changed == {"u2"}
