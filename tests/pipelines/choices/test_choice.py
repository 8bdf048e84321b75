import pytest

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.optimizers import Adagrad
from pipelines.choices.choice import (
    AS_CONFIGURED,
    Choice,
    chain,
    dims_of,
    doubled,
    larger_batch,
    singles,
    smallest,
    thinned,
    total_bytes,
)

pytestmark = pytest.mark.light


def table(name, rows, dim):
    return TableConfig(name=name, vocabulary_size=rows, dim=dim, optimizer=Adagrad())


def tables(**sizes):
    """Make tables from (rows, dim) by name."""
    return EmbeddingConfig(
        tables=tuple(table(name, *size) for name, size in sizes.items()),
        features=tuple(FeatureConfig(name=name, table=name) for name in sizes),
    )


TWO = tables(item=(1000, 32), shop=(100, 16))


@pytest.mark.parametrize(
    ("dim", "dims"),
    [(64, (64, 32, 16, 8)), (24, (24, 16, 8)), (12, (12, 8)), (8, (8,)), (1, (1,)), (100, (100, 56, 32, 16, 8))],
)
def test_dims_are_halves_in_multiples_of_8(dim, dims):
    assert dims_of(table("item", 5, dim)) == dims


def test_table_that_set_cannot_name_keeps_its_dim():
    assert dims_of(table("item.id", 5, 64)) == (64,)


def test_choice_in_words_and_settings():
    choice = Choice((("item", 8), ("shop", 8), ("user", 16)), 512)
    assert choice.words == "batch 512; dim 8 of item, shop; dim 16 of user"
    assert choice.settings[0] == "tables.item.dim=8"
    assert choice.settings[-1] == "training.batch_size=512"
    assert [one.words for one in choice.parts] == ["dim 8 of item", "dim 8 of shop", "dim 16 of user", "batch 512"]
    assert AS_CONFIGURED.words == "as configured"
    assert larger_batch(256).settings == ["training.batch_size=1024"]


def test_choice_changes_its_tables_alone():
    changed = Choice((("item", 8),)).applied_to(TWO)
    assert [one.dim for one in changed.tables] == [8, 16]
    assert total_bytes(changed) == 2 * 4 * (1000 * 8 + 100 * 16)  # rows and one slot


def test_singles_that_save_most_come_first():
    assert singles(TWO) == [Choice((("item", 8),)), Choice((("shop", 8),))]
    assert singles(tables(item=(5, 8))) == []


def test_doubled_dims_are_at_most_128():
    assert doubled(tables(item=(5, 96), shop=(5, 8), **{"user.id": (5, 8)})).dims == (("item", 128), ("shop", 16))
    assert doubled(tables(item=(5, 128))) == AS_CONFIGURED


def test_chain_without_losses_saves_most_bytes_first():
    assert [dict(one.dims) for one in chain(TWO, lambda _: 0.0)] == [
        {"item": 16}, {"item": 8}, {"item": 8, "shop": 8},
    ]  # fmt: skip
    assert chain(TWO, lambda _: 0.0)[-1] == smallest(TWO)


def test_chain_leaves_the_table_that_loses_most_to_the_end():
    loss = {("item", 16): 0.1, ("item", 8): 0.3, ("shop", 8): 0.0}
    steps = chain(TWO, lambda one: loss[one.dims[0]])
    assert [dict(one.dims) for one in steps] == [{"shop": 8}, {"item": 16, "shop": 8}, {"item": 8, "shop": 8}]


def test_chain_does_not_touch_a_table_whose_loss_is_unknown():
    steps = chain(TWO, lambda one: None if one.dims[0][0] == "item" else 0.0)
    assert steps == [Choice((("shop", 8),))]


def test_thinned_keeps_the_last():
    assert thinned([1, 2, 3, 4, 5], 2)[-1] == 5
    assert len(thinned(list(range(17)), 4)) == 4
    assert thinned([1, 2], 4) == [1, 2]
    assert thinned([1, 2], 0) == []
