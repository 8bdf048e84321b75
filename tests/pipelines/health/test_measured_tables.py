"""Tests the health of checkpoints: rows aligned by token, and planted sicknesses in tables that a trainer trained."""

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest

from embedding_core.checkpoint.table_health import CheckpointTables, measure_checkpoint
from embedding_core.errors import CheckpointError
from embedding_core.health import Health, judge_table
from tests.pipelines.health.chains import made_up_chain, trained
from tests.pipelines.health.judging import judged
from tests.pipelines.health.planted_sicknesses import SICKNESSES, planted


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Four runs of the trainer: one on many rows, then three days."""
    folder = tmp_path_factory.mktemp("chain")
    made = made_up_chain(folder, seed=3, runs=3)
    return made, [checkpoint for _, checkpoint in trained(made, folder)]


@functools.cache
def tables(folder: Path) -> CheckpointTables:
    return CheckpointTables(folder)


def test_healthy_runs_are_not_refused(chain):
    made, line = chain
    for base, now in itertools.pairwise(line):
        assert judged(now, base, made) == ()


def test_cold_start_is_measured_alone(chain):
    (item, user) = measure_checkpoint(tables(chain[1][0]))
    assert (item.table, user.table) == ("item", "user")
    assert not item.has_base
    assert not {"frozen", "strayed", "move_unseen"} & item.values.keys()
    assert not judge_table(item, Health(), str)


@pytest.mark.parametrize("table", ["item", "user"])
@pytest.mark.parametrize("sickness", SICKNESSES)
def test_planted_sickness_is_found_in_its_table(chain, tmp_path, sickness, table):
    made, line = chain
    sick = planted(sickness, table, (line[0], line[2], line[3]), tmp_path / "sick")
    found = judged(tmp_path / "sick", line[2], made)
    assert found
    assert {finding.table for finding in found} <= sick
    assert all(repr(finding.table) in finding.reason for finding in found)


def test_tokens_of_a_private_column_are_shown_as_digests(chain, tmp_path):
    made, line = chain
    planted("zeroed", "user", (line[0], line[2], line[3]), tmp_path / "sick")
    (zero,) = [finding for finding in judged(tmp_path / "sick", line[2], made) if finding.figure == "zero"]
    assert all(token.startswith(("sha256:", "out of")) for token in zero.tokens)
    planted("zeroed", "item", (line[0], line[2], line[3]), tmp_path / "other")
    (zero,) = [finding for finding in judged(tmp_path / "other", line[2], made) if finding.figure == "zero"]
    assert all(token.startswith(("i", "out of")) for token in zero.tokens)


@pytest.mark.parametrize("slice_bytes", [256, 4096])
def test_figures_do_not_depend_on_the_slices(chain, slice_bytes):
    now, base = tables(chain[1][3]), tables(chain[1][2])
    for mine, other in zip(
        measure_checkpoint(now, base), measure_checkpoint(now, base, slice_bytes=slice_bytes), strict=True
    ):
        assert mine.values == pytest.approx(other.values)
        assert mine.examples == other.examples


def test_rows_are_compared_by_token(chain):
    """Ids of the base differ: of the rows that both have, few are in the same place."""
    now, base = tables(chain[1][3]), tables(chain[1][2])
    tokens = [list(run.vocabularies["item"].tokens.to_pylist()) for run in (base, now)]
    same = np.mean([a == b for a, b in zip(*tokens, strict=False)])
    assert same < 0.5
    (item, _) = measure_checkpoint(now, base)
    assert item.values["strayed"] == item.values["frozen"] == 0.0


def test_damaged_checkpoint_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="manifest"):
        CheckpointTables(tmp_path)
