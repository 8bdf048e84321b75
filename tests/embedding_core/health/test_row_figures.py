"""Tests the figures of rows against values computed in another way, whatever the size of the blocks."""

import numpy as np
import pytest

from embedding_core.health import Block, Earlier, TableFacts, measure_table

pytestmark = pytest.mark.light

CHANCE = np.random.default_rng(5)
ROWS = CHANCE.normal(size=(200, 6)).astype(np.float32)
SLOTS = (CHANCE.random((200, 6)) + 1).astype(np.float32)
COUNTS = np.arange(190, dtype=np.int64)[::-1] % 7  # the last 10 rows are out-of-vocabulary rows


class Table:
    """A table in memory, in blocks of 33 rows."""

    def __init__(self, rows, before=None, *, slots=SLOTS, slots_before=SLOTS, sources=None, size=33, **facts):
        sources = np.arange(len(rows)) if before is not None and sources is None else sources
        self.facts = TableFacts(
            name="items", rows=len(rows), dim=rows.shape[1], sources=sources, **{"counts": COUNTS, **facts}
        )
        self.rows, self.before, self.slots, self.slots_before, self.size = rows, before, slots, slots_before, size

    def blocks(self):
        for start in range(0, len(self.rows), self.size):
            part = slice(start, start + self.size)
            slots, earlier = () if self.slots is None else (self.slots[part],), None
            if self.before is not None:
                sources = self.facts.sources[part]
                old = () if self.slots_before is None else (self.slots_before[sources],)
                earlier = Earlier(known=sources >= 0, rows=self.before[sources], slots=old)
            yield Block(start=start, rows=self.rows[part], slots=slots, earlier=earlier)


def measured(rows, before=None, **facts):
    table = Table(rows, before, **facts)
    return measure_table(table.facts, table.blocks())


def changed(rows, at, value):
    rows = rows.copy()
    rows[at] = value
    return rows


@pytest.mark.parametrize("size", [1, 33, 200])
def test_figures_of_the_table_itself(size):
    values = measured(ROWS, size=size).values
    norms = np.linalg.norm(ROWS.astype(np.float64), axis=1)
    assert values["norm_median"] == pytest.approx(np.median(norms))
    assert values["norm_spread"] == pytest.approx(norms.max() / np.median(norms))
    units = (np.square(ROWS.mean(0)).sum() / np.square(ROWS).sum(1).mean()).item()
    assert values["common_direction"] == pytest.approx(units, rel=1e-4)
    zeros = ("zero", "duplicated", "constant_columns")
    assert {name: values[name] for name in zeros} == dict.fromkeys(zeros, 0.0)


def test_rows_that_are_zero_or_equal():
    rows = changed(changed(changed(ROWS, [3, 4], 0.0), [7, 8, 9], ROWS[0]), 11, np.nan)
    figures = measured(rows)
    assert figures.values["zero"] == 2 / 199
    assert set(figures.examples["zero"]) == {3, 4}
    assert figures.values["duplicated"] == 4 / 197
    assert set(figures.examples["duplicated"]) == {0, 7, 8, 9}


def test_rows_of_constant_initializer_are_not_zero_or_duplicated():
    values = measured(changed(ROWS, slice(0, 50), 0.0), constant=0.0).values
    assert values["zero"] == values["duplicated"] == 0.0


def test_ftrl_with_l1_may_have_zeros():
    assert "zero" not in measured(changed(ROWS, 3, 0.0), zeros=True).values


def test_columns_and_directions_that_say_nothing():
    figures = measured(changed(ROWS, (slice(None), [1, 4]), 0.5)).values
    assert figures["constant_columns"] == 2
    assert measured(1 + 0.01 * ROWS).values["common_direction"] > 0.99


def test_unchanged_tokens_of_this_run_are_frozen():
    rows = changed(ROWS + 0.1, slice(0, 20), ROWS[:20])
    figures = measured(rows, ROWS)
    assert figures.values["frozen"] == COUNTS[:20].sum() / COUNTS.sum()
    assert figures.examples["frozen"][0] == np.argmax(COUNTS[:20])


def test_rows_that_moved_without_a_change_of_their_slots_strayed():
    slots = SLOTS.copy()
    slots[:50] += 1.0
    rows = changed(ROWS, slice(0, 70), ROWS[:70] * 1.1)
    assert measured(rows, ROWS, slots=slots, drawn=True).values["strayed"] == pytest.approx(20 / 150)
    assert measured(ROWS * 1.001, ROWS, slots=slots).values["strayed"] == 0.0  # a gradient too small for its slot


def test_without_slots_the_counts_say_which_rows_were_trained():
    rows = changed(ROWS, 5, ROWS[5] * 1.1)
    given = {"slots": None, "slots_before": None}
    counts = changed(COUNTS, slice(0, 10), 0)
    unseen = (counts == 0).sum()
    assert measured(rows, ROWS, counts=counts, **given).values["strayed"] == 1 / unseen
    assert "strayed" not in measured(rows, ROWS, counts=counts, drawn=True, **given).values


def test_rows_of_absent_tokens_strayed_whatever_their_slots():
    """Rows and slots of another day look like training, but nothing trains the rows of absent tokens."""
    absent = np.flatnonzero(COUNTS == 0)
    rows, slots = changed(ROWS, absent[:5], 2 * ROWS[absent[:5]]), SLOTS + 1
    assert measured(rows, ROWS, slots=slots).values["strayed"] == pytest.approx(5 / len(absent))
    for known in ({"drawn": True}, {"sweeps": True}):
        assert "strayed" not in measured(rows, ROWS, slots=slots, **known).values


def test_frozen_rows_count_once_each():
    rows = changed(ROWS + 0.1, slice(0, 20), ROWS[:20])
    seen = COUNTS > 0
    assert measured(rows, ROWS).values["frozen_rows"] == seen[:20].sum() / seen.sum()


def test_figures_name_the_rows_that_moved_furthest():
    rows = changed(ROWS * 1.01, 4, -ROWS[4])
    counts = changed(COUNTS, slice(0, 50), 0)
    assert measured(rows, ROWS, counts=counts).examples["move_unseen"][0] == 4


def test_out_of_vocabulary_rows_may_move():
    rows = changed(ROWS, slice(190, 200), 9.0)
    assert measured(rows, ROWS).values["move_unseen"] == 0.0
    assert "move_unseen" not in measured(rows, ROWS, counts=COUNTS + 1).values


def test_moves_are_by_token_and_over_the_norm():
    """The base has the rows in the opposite order, and lacks the first ten tokens."""
    sources = np.where(np.arange(200) < 10, -1, 199 - np.arange(200))
    values = measured(ROWS * 1.2, ROWS[::-1].copy(), sources=sources, slots=None, slots_before=None).values
    assert values["move_unseen"] == pytest.approx(0.2, rel=1e-5)
    assert values["frozen"] == 0.0


def test_figures_do_not_depend_on_the_blocks():
    rows, slots = ROWS * 1.1, SLOTS * 1.1
    first, other = (measured(rows, ROWS, slots=slots, size=size) for size in (7, 200))
    assert first.values == pytest.approx(other.values)
    assert first.examples == other.examples


def test_raw_ids_have_no_figures_of_traffic():
    values = measured(ROWS * 1.1, ROWS, counts=None).values
    assert not {"frozen", "move_unseen"} & values.keys()
    assert values["strayed"] == 1.0


def test_norm_beyond_float32_still_counts():
    assert measured(changed(ROWS, 0, np.finfo(np.float32).max), ROWS).values["norm_spread"] > 1e30


def test_table_of_one_row():
    values = measured(ROWS[:1], ROWS[:1], counts=COUNTS[:1], slots=SLOTS[:1], slots_before=SLOTS[:1]).values
    assert values["norm_median"] == pytest.approx(np.linalg.norm(ROWS[0]))
    assert "constant_columns" not in values
