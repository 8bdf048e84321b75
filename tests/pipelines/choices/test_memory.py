import pytest

from embedding_core.errors import ConfigError
from embedding_core.planning.topology import GIB, memory_plan, named_topology
from embedding_core.tpu_compiler import TpuCompiler
from pipelines.choices.choice import AS_CONFIGURED, Choice, smallest
from pipelines.choices.memory import (
    Compiled,
    need_of,
    pareto_front,
    parse_budget,
    parse_slices,
    size_words,
    what_would_fit,
)
from pipelines.config import config_from_mapping
from tests.pipelines.choices.test_choice import tables

pytestmark = pytest.mark.light

LARGE = tables(item=(300_000_000, 64))


@pytest.mark.parametrize(("text", "count"), [("16GiB", 16 * GIB), ("1.5 GB", 1_500_000_000), ("7 B", 7)])
def test_budget_with_a_unit(text, count):
    assert parse_budget(text) == count


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("16Gib", "'GiB'"),
        ("16gb", "'GB'"),
        ("16", "16GiB"),
        ("GiB", "such as 16GiB"),
        ("0GiB", "above 0"),
        ("-1GiB", "above 0"),
        ("0.5B", "at least 1 byte"),
    ],
)
def test_unreadable_budget_is_named_with_a_remedy(text, remedy):
    with pytest.raises(ConfigError, match=f"`--budget` is '{text}'.*{remedy}"):
        parse_budget(text)


def test_slices_are_parsed_once_each():
    assert [one.name for one in parse_slices("v3-8, v5e-4,v3-8")] == ["v3-8", "v5e-4"]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [("v3-8,v5e4", "'v5e-4'"), ("v7-8", "v2, v3, v4"), (" ,", "such as v3-8"), ("v3-9", "multiples of 8")],
)
def test_unknown_slice_is_named(text, remedy):
    with pytest.raises(ConfigError, match=f"`--slices`.*{remedy}"):
        parse_slices(text)


@pytest.mark.parametrize(
    ("name", "chips"), [("v2-8", 4), ("v3-32", 16), ("v4-8", 4), ("v5e-4", 4), ("v5p-8", 4), ("v6e-8", 8)]
)
def test_chips_of_a_slice(name, chips):
    assert named_topology(name).chips == chips


def test_need_rounds_the_batch_up_to_what_the_slice_divides():
    two = tables(item=(1000, 32), shop=(100, 16))
    assert need_of(AS_CONFIGURED, two, named_topology("v3-8"), 250).batch_size == 256
    assert need_of(Choice(batch_size=1000), two, named_topology("v5p-8"), 250).batch_size == 1008
    whole = need_of(AS_CONFIGURED, two, named_topology("v5e-4"), 256)
    assert (whole.table_bytes, whole.served_bytes) == (2 * 4 * 33_600, 4 * 33_600)
    mixed = need_of(AS_CONFIGURED, two, named_topology("v5e-4"), 256, {"item": "int8"})
    assert mixed.served_bytes == 1000 * (32 + 8) + 4 * 100 * 16
    assert whole.stacks is None


def test_equal_dims_share_a_stack():
    two, slice_ = tables(item=(1000, 32), shop=(100, 16)), named_topology("v6e-8")
    assert need_of(AS_CONFIGURED, two, slice_, 256).stacks == 2
    assert need_of(Choice((("item", 16),)), two, slice_, 256).stacks == 1


def test_what_would_fit_names_more_chips_and_fewer_rows():
    text = what_would_fit(LARGE, named_topology("v2-8"), GIB)
    assert "the smallest dims need 2.2 GiB of 1.0 GiB" in text
    assert "v2-32, of 16 chips, would hold them" in text
    assert "44.7% of the rows (`vocabularies.NAME.max_size`) would" in text


@pytest.mark.parametrize(("name", "larger"), [("v6e-1", "v6e-4"), ("v3-8", "v3-16"), ("v5p-8", "v5p-16")])
def test_larger_slice_is_one_that_exists(name, larger):
    needed = memory_plan(smallest(LARGE).applied_to(LARGE), named_topology(name))["fullest_core_bytes"]
    assert f"{larger}, of " in what_would_fit(LARGE, named_topology(name), needed // 2 + 8)


def test_share_of_rows_that_is_almost_none_is_not_zero():
    assert "less than 0.1% of the rows" in what_would_fit(LARGE, named_topology("v2-8"), 100)


@pytest.mark.parametrize(("stage", "kept"), [("compiled", True), ("refused", True), ("stopped", False)])
def test_compiler_that_was_killed_is_tried_again(tmp_path, monkeypatch, stage, kept):
    (tmp_path / "rows.csv").write_text("item,bought\na,1\n")
    checked = config_from_mapping(
        {"data": "rows.csv", "label": "bought", "features": {"categorical": ["item"]}, "name": "my"}, tmp_path
    )
    asked = []

    def answer(*_):
        asked.append(stage)
        sizes = dict.fromkeys(("core_bytes", "table_bytes", "argument_bytes", "temporary_bytes"), 1)
        return {"stage": stage, **sizes, "tables_inside": False, "error": "", "seconds": 1.0}

    monkeypatch.setattr(Compiled, "_compiled", answer)
    for _ in range(2):
        compiled = Compiled(checked, LARGE, "given", TpuCompiler(python=tmp_path), str(tmp_path))
        assert compiled.of(AS_CONFIGURED, named_topology("v3-8"), 256)["stage"] == stage
    assert len(asked) == (1 if kept else 2)


def test_what_would_fit_on_replicated_tables_is_not_more_chips():
    assert "more chips do not help" in what_would_fit(LARGE, named_topology("v5e-4"), GIB)


def test_front_prefers_fewer_differences_among_equals():
    points = [(8, 0.0, 0), (4, 0.0, 2), (4, 0.0, 1), (2, 0.1, 3), (3, 0.1, 3), (1, 0.5, 4)]
    assert pareto_front(points) == {2, 3, 5}


@pytest.mark.parametrize(("count", "words"), [(2 * GIB, "2.0 GiB"), (1536, "1.5 KiB"), (7, "7 B")])
def test_size_in_words(count, words):
    assert size_words(count) == words
