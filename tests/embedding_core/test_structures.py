"""Each value goes to the leaf at its path. Structures that TensorFlow finds different are refused, except that a tuple
counts as a list.
"""

from collections import OrderedDict, namedtuple

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from embedding_core.errors import ConfigError, DataError
from embedding_core.layer import TPUEmbedding
from embedding_core.lookup import cpu_embedding_lookup
from embedding_core.structures import flat_like, flat_pairs, paths_of

tpu = tf.tpu.experimental.embedding
ZA = namedtuple("ZA", "z a")
AZ = namedtuple("AZ", "a z")


def containers(items):
    keys = [st.sampled_from(["a", "z", "a/z", "0", "1", "10"]), st.sampled_from([0, 1, 2, 10])]
    return st.one_of(
        *(st.dictionaries(key, items, min_size=1, max_size=4) for key in keys),
        st.lists(items, min_size=1, max_size=12),
        st.lists(items, min_size=1, max_size=3).map(tuple),
        st.builds(ZA, items, items),
        st.builds(AZ, items, items),
    )


structures = st.recursive(st.none(), containers, max_leaves=14).filter(lambda found: found is not None)


def built(structure, leaf, path=()):
    """The structure with `leaf(path)` as its leaves."""
    if isinstance(structure, dict):
        return type(structure)((key, built(item, leaf, (*path, key))) for key, item in structure.items())
    if hasattr(structure, "_fields"):
        items = zip(structure._fields, structure, strict=True)
        return type(structure)(*(built(item, leaf, (*path, name)) for name, item in items))
    if isinstance(structure, list | tuple):
        return type(structure)(built(item, leaf, (*path, place)) for place, item in enumerate(structure))
    return leaf(path)


def twisted(draw, structure):
    """Draw a variant of a structure: unchanged, in another order, or with other types of containers or keys."""
    if not isinstance(structure, dict | list | tuple):
        return structure
    fields = getattr(structure, "_fields", range(len(structure)))
    items = list(structure.items()) if isinstance(structure, dict) else list(zip(fields, structure, strict=True))
    items = [(key, twisted(draw, item)) for key, item in items]
    values = [value for _, value in items]
    choices = {
        "same": structure,
        "reversed": OrderedDict(reversed(items)),
        "text": {str(key): value for key, value in items},
        "list": values,
        "tuple": tuple(values),
        "named": ZA(*values) if len(values) == 2 else values,
        "renamed": AZ(*values) if len(values) == 2 else values,
    }
    return choices[draw(st.sampled_from(sorted(choices)))]


@st.composite
def pairs(draw):
    structure = draw(structures)
    return structure, twisted(draw, structure)


def listed(structure):
    if isinstance(structure, dict):
        return {key: listed(item) for key, item in structure.items()}
    if hasattr(structure, "_fields"):
        return type(structure)(*map(listed, structure))
    return list(map(listed, structure)) if isinstance(structure, list | tuple) else structure


def is_like(first, other):
    """Return whether TensorFlow finds the structures the same if a tuple counts as a list."""
    try:
        tf.nest.assert_same_structure(listed(first), listed(other))
    except (TypeError, ValueError):
        return False
    return True


@settings(deadline=None, max_examples=150)
@given(pairs())
def test_values_go_to_their_own_paths_or_are_refused(pair):
    structure, other = (built(part, lambda path: f"leaf at {path}") for part in pair)
    if is_like(structure, other):
        assert flat_like("x", structure, other) == tf.nest.flatten(structure) == tf.nest.flatten(other)
        assert [f"leaf at {path}" for path in paths_of(structure)] == tf.nest.flatten(structure)
    else:
        with pytest.raises(DataError, match="structure of the configuration"):
            flat_like("x", structure, other)


@settings(deadline=None, max_examples=10)
@given(pairs())
def test_ids_go_to_the_right_table_or_are_refused(pair):
    """Table number n holds the value n, so that a vector shows its table."""
    structure, other = pair
    paths = paths_of(structure)
    tables = [tpu.TableConfig(1, 1, tf.constant_initializer(n), name=f"t{n}") for n in range(len(paths))]
    config = built(structure, lambda path: tpu.FeatureConfig(tables[paths.index(path)]))
    ids = built(other, lambda path: tf.zeros([1], tf.int64))
    values = {table: tf.constant([[float(n)]]) for n, table in enumerate(tables)}
    layer = TPUEmbedding(config, None)
    for look_up in (layer, lambda given: cpu_embedding_lookup(given, None, values, config)):
        if not is_like(structure, other):
            with pytest.raises(DataError, match="structure of the configuration"):
                look_up(ids)
            continue
        found = built(other, lambda path: float(paths.index(path)))
        assert [row.numpy().item() for row in tf.nest.flatten(look_up(ids))] == tf.nest.flatten(found)


@pytest.mark.parametrize(
    ("structure", "other"),
    [
        (ZA(z="f1", a="f2"), {"z": "f1", "a": "f2"}),
        (ZA(z="f1", a="f2"), AZ(z="f1", a="f2")),
        (ZA("f1", "f2"), ("f1", "f2")),
        ({1: "f1", 2: "f2", 10: "f3"}, {"1": "f1", "2": "f2", "10": "f3"}),
        (list(range(11)), {str(n): n for n in range(11)}),
        ({"a": {"b": "f1"}, "c": "f2"}, {"a/b": "f1", "c": "f2"}),
        ({"a": [1]}, {"a": []}),
        ({"a": 1}, 1),
        (1, {"a": 1}),
        ([1], None),
        ([1], [[1]]),
    ],
)
def test_structures_of_equal_texts_are_not_equal(structure, other):
    for first, two in ((structure, other), (other, structure)):
        with pytest.raises(DataError, match="structure of the configuration"):
            flat_like("features", first, two)


def test_part_of_a_structure():
    """TensorFlow's own tests leave out the last items of a tuple."""
    structure = {"b": ["f0", "f1"], "c": ZA("f2", "f3")}
    assert flat_pairs("inputs", structure, {"b": (0,)}, partial=True) == [("f0", 0)]
    assert flat_pairs("inputs", structure, {"c": ZA(2, 3)}, partial=True) == [("f2", 2), ("f3", 3)]
    for other in ({"b": [0, 1, 2]}, {"c": [2]}, {"b": {1: 1}}, {"b": {0: 0}}):
        with pytest.raises(DataError, match="structure of the configuration"):
            flat_pairs("inputs", structure, other, partial=True)
    with pytest.raises(DataError, match=r"missing \[\('b', 1\)\]"):
        flat_like("features", structure, {"b": [0], "c": ZA(2, 3)})


def test_wrapped_containers_are_the_containers():
    module = tf.Module()
    module.kept = {"b": [1, 2], "a": ({"c": 3},)}
    assert flat_like("features", {"a": [{"c": 0}], "b": [0, 0]}, module.kept) == [3, 1, 2]
    assert flat_like("features", module.kept, {"a": [{"c": 0}], "b": [4, 5]}) == [0, 4, 5]


def test_mismatch_names_both_sides():
    with pytest.raises(DataError, match=r"missing \[1\], not configured \['1'\]; give exactly \[1, 2\]"):
        flat_like("features", {1: 0, 2: 0}, {"1": 0, 2: 0})


def test_unsortable_keys_are_refused():
    with pytest.raises(ConfigError, match="one type"):
        paths_of({1: 0, "1": 0})
