"""An exported model takes deltas: it becomes bit-equal to a new export, and refuses what is not the next delta."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.deltas import content as contents
from embedding_core.deltas import graph
from embedding_core.deltas.content import (
    DENSE,
    NUMBERS,
    TOKENS,
    VALUES,
    Delta,
    TableContent,
    read_content,
    write_content,
)
from embedding_core.deltas.export import DeltaExport, fixed_parts
from embedding_core.deltas.graph import checksum
from embedding_core.deltas.protocol import DeltaError
from embedding_core.deltas.served_state import LAYOUT, Layout, LoadedVersion, read_state
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.varints import varints
from tests.deltas.worlds import SECRET, TYPES, World, exports_of, request_of

SIGNATURES = ("serving_default", "embeddings")
NONE = np.zeros(0, np.int64)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return exports_of(tmp_path_factory.getbasetemp())


@pytest.fixture
def served(exports):
    with LoadedVersion(exports.folders[0]) as version:
        yield version


@pytest.fixture(scope="module")
def unchanged(exports):
    """Return a loaded version for requests that must not change it."""
    with LoadedVersion(exports.folders[0]) as version:
        yield version


def answers_of(version, rows):
    return {name: version.answer(name, rows) for name in SIGNATURES}


def same(first, other):
    return all(
        first[name][key].tolist() == other[name][key].tolist() and first[name][key].dtype == other[name][key].dtype
        for name in first
        for key in first[name]
    )


def test_deltas_make_a_version_equal_to_each_new_export(exports, served):
    folders, rows, requests = exports
    assert served.state().digest() == Layout.load(folders[0]).digest
    for request, folder in zip(requests, folders[1:], strict=True):
        assert served.call("apply_delta", **request)["applied"] == 1
        assert served.state().digest() == Layout.load(folder).digest
        with LoadedVersion(folder) as whole:
            assert same(answers_of(served, rows), answers_of(whole, rows))


def broken_requests(requests):
    """Yield wrong, repeated and damaged requests for a version that has the first delta, with the reason."""
    first, second = requests
    delta = second["delta"]
    flipped = delta[:40] + bytes([delta[40] ^ 1]) + delta[41:]
    yield "the secret is wrong", {**second, "secret": b"another"}
    yield "the secret is wrong", {**second, "secret": b""}
    yield "it was applied before", first
    yield "nothing was given", {**second, "number": 0}
    wrong = {"delta": [delta[:-1], delta + b"x", flipped], "digest": ["0" * 64], "number": [1]}
    for name, values in wrong.items():
        for value in values:
            yield "it is damaged", {**second, name: value}


def test_version_refuses_what_is_not_the_next_delta(exports, served):
    _, rows, requests = exports
    missed = served.call("apply_delta", **requests[1])
    assert (missed["applied"], missed["reason"], missed["number"]) == (0, b"a delta before it is missing", 0)
    assert served.call("apply_delta", **requests[0])["applied"] == 1
    before, state = answers_of(served, rows), served.state().digest()
    for reason, request in broken_requests(requests):
        answer = served.call("apply_delta", **request)
        assert (answer["applied"], answer["number"]) == (0, 1)
        assert reason in answer["reason"].decode()
        assert answer["model_digest"].decode() == state
    assert served.state().digest() == state
    assert same(answers_of(served, rows), before)


def content_of(rows=(1, 2), values=(0.5,) * 8, strict=((), ()), items=((), ()), ids=((), ()), dense=(), weights=b""):
    """Make a delta of rows of `words`, of tokens and the rows of those that came, and of weights; it may be wrong."""
    tables = [
        TableContent(rows=np.array(rows), values=np.float32(values).tobytes(), came=(), came_rows=NONE, went=()),
        *(
            TableContent(rows=NONE, values=b"", came=came, came_rows=np.array(places, np.int64), went=())
            for came, places in (strict, items, ids)
        ),
    ]
    return write_content(tables, dense, [weights])


def with_feature(content, name, value):
    """Replace one of the strings of a delta."""
    example = tf.train.Example.FromString(content)
    example.features.feature[name].bytes_list.value[:] = [value]
    return example.SerializeToString(deterministic=True)


def numbers(*values):
    return varints(np.array(values, np.uint64))[0].tobytes()


HEAD = (2, 0, 0, *[0] * 9, 0)
ROWS, STRICT, ITEMS = "rows of table 'words'", "tokens of table 'strict'", "tokens of table 'items'"
UNFIT = "do not fit together"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (content_of(rows=(0, 999)), ROWS),
        (content_of(rows=(1, 2**33)), ROWS),
        (content_of(rows=(2, 2)), ROWS),
        (content_of(values=[np.nan] * 8), ROWS),
        (content_of(values=[0.5] * 7), UNFIT),
        (content_of(values=()), UNFIT),
        (content_of(rows=(1, 2, 3)), UNFIT),
        (content_of(strict=((b"x", b"y"), (3, 500))), STRICT),
        (content_of(strict=((b"x", b"y"), (4, 4))), STRICT),
        (content_of(strict=((b"x", b"x"), (4, 5))), STRICT),
        (content_of(strict=((b"x", b""), (4, 5))), STRICT),
        (content_of(strict=((b"x", b"y"), (3, 4, 5))), UNFIT),
        (content_of(strict=((b"x", b"y\nz"), (3, 4))), UNFIT),
        (content_of(items=((b"x",), (12,))), ITEMS),  # the row of unknown tokens
        (content_of(ids=((b"x",), (2,))), "table 'ids' has no tokens"),
        (content_of(dense=(0,), weights=b"abc"), UNFIT),
        (content_of(dense=(99,)), UNFIT),
        (content_of(dense=(), weights=b"abcd"), UNFIT),
        (content_of(dense=(1,), weights=np.float32([np.inf] * 5).tobytes()), "dense weights 1 are not finite"),
        (with_feature(content_of(), NUMBERS, b""), UNFIT),
        (with_feature(content_of(), NUMBERS, numbers(*HEAD)[:-1]), UNFIT),
        (with_feature(content_of(), NUMBERS, numbers(*HEAD, 1)), UNFIT),
        (with_feature(content_of(), NUMBERS, numbers(*HEAD, 1, 1, 1)), UNFIT),
        (with_feature(content_of(), NUMBERS, numbers(*HEAD, 1) + b"\x81"), UNFIT),  # has no last group
        (with_feature(content_of(), NUMBERS, numbers(*HEAD, 1) + b"\x81" * 5 + b"\0"), UNFIT),  # too many groups
        (with_feature(content_of(), TOKENS, b"x\n"), UNFIT),
        (with_feature(content_of(), DENSE, b"x"), UNFIT),
        (with_feature(content_of(), VALUES, b"x" * 33), UNFIT),
    ],
)
def test_graph_refuses_content_that_does_not_fit(exports, unchanged, content, reason):
    """The content has the right checksum, as that of a faulty publisher would."""
    layout = Layout.load(exports.folders[0])
    given = (1, layout.digest, "0" * 64, content)
    request = dict(zip(("number", "base", "digest", "delta"), given, strict=True), secret=SECRET)
    answer = unchanged.call("apply_delta", checksum=checksum(layout.checksum_key, *given), **request)
    assert answer["applied"] == 0
    assert reason in answer["reason"].decode()
    assert unchanged.state().digest() == layout.digest


@pytest.mark.parametrize("content", [b"\xff", with_feature(content_of(), NUMBERS, b"\x81"), content_of(values=())])
def test_content_that_does_not_fit_is_one_error_to_readers(exports, content):
    with pytest.raises(CheckpointError, match="a delta does not fit its version"):
        Delta.from_bytes(content, read_state(exports.folders[0]))


def test_content_is_little_more_than_what_changed(exports):
    delta = Delta.between(*(read_state(folder) for folder in exports.folders[:2]))
    assert len(delta.to_bytes(read_state(exports.folders[0]).layout)) < 1.3 * delta.changed_bytes


def test_delta_too_large_for_one_message_is_refused(monkeypatch):
    monkeypatch.setattr(contents, "LARGEST", 40)
    with pytest.raises(DeltaError, match="the delta has 47 bytes: a message may have 40"):
        content_of()


def test_far_rows_and_many_tokens_are_written_and_read():
    draw = np.random.default_rng(3)
    rows = np.sort(draw.choice(2**31 - 1, 500, replace=False))
    names = [b"token %d" % number for number in range(300)]
    tables = [
        TableContent(rows=rows, values=draw.bytes(500 * 6), came=names, came_rows=rows[:300], went=names[7:]),
        TableContent(rows=NONE, values=b"", came=(), came_rows=NONE, went=()),
    ]
    found, weights = read_content(write_content(tables, (1,), [b"abcd"]), (6, 8), (3, 4))
    assert weights == {1: b"abcd"}
    for mine, other in zip(found, tables, strict=True):
        assert (mine.values, tuple(mine.came), tuple(mine.went)) == (other.values, tuple(other.came), tuple(other.went))
        np.testing.assert_array_equal(mine.rows, other.rows)
        np.testing.assert_array_equal(mine.came_rows, other.came_rows)


def test_delta_of_another_export_of_the_same_model_is_refused(tmp_path, exports, served):
    other, layout = World.of(7).export(tmp_path / "other", rows_dtype=TYPES), Layout.load(exports.folders[0])
    assert (Layout.load(other).digest, Layout.load(other).fixed) == (layout.digest, layout.fixed)
    request, _ = request_of(read_state(other), read_state(exports.folders[1]), 1)
    assert served.call("apply_delta", **request)["reason"] == b"it is damaged, or for another export"


def test_half_written_delta_fails_requests_until_applied_again(exports):
    folders, rows, (first, _) = exports
    loaded = tf.saved_model.load(str(folders[0]))
    loaded.deltas.sequence.assign(7)  # as if the server had ended the request in the middle
    with pytest.raises(tf.errors.InvalidArgumentError, match="apply it again"):
        loaded.signatures["serving_default"](examples=tf.constant(rows))
    request = dict(first)
    number = tf.constant(request.pop("number"), tf.int64)
    given = {name: tf.constant(value) for name, value in request.items()}
    assert loaded.signatures["apply_delta"](number=number, **given)["applied"].numpy() == 1
    answer = loaded.signatures["serving_default"](examples=tf.constant(rows))
    with LoadedVersion(folders[1]) as whole:
        assert answer["logit"].numpy().tobytes() == whole.answer("serving_default", rows)["logit"].tobytes()


def test_request_that_waits_for_a_delta_computes_nothing(monkeypatch):
    monkeypatch.setattr(graph, "_PATIENCE", 0.1)
    state, computed = graph.DeltaState(None), tf.Variable(0)
    compute = tf.function(lambda x: {"y": x + tf.cast(computed.assign_add(1), tf.float32)})
    guarded = state.guarded(compute.get_concrete_function(tf.TensorSpec([None], name="x")))
    state.sequence.assign(1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="apply it again"):
        guarded(x=tf.zeros(2))
    state.sequence.assign(2)
    assert guarded(x=tf.zeros(2))["y"].numpy().tolist() == [1, 1]


def test_export_without_deltas_lacks_signature_and_variables(tmp_path, exports):
    folder = World.of(7).export(tmp_path / "plain", deltas=False, rows_dtype=TYPES)
    names = [name for name, _ in tf.train.list_variables(f"{folder}/variables/variables")]
    assert not [name for name in names if "deltas" in name or "changed" in name or "hashes" in name]
    with LoadedVersion(folder) as plain, LoadedVersion(exports.folders[0]) as changing:
        assert plain.signatures == changing.signatures - {"apply_delta"}
        mine, other = (server.answer("serving_default", exports.rows) for server in (plain, changing))
        assert set(other) - set(mine) == {"model_digest"}
        assert all(mine[name].tobytes() == other[name].tobytes() for name in mine)
    assert not (folder / LAYOUT).exists()
    with pytest.raises(CheckpointError, match="does not take deltas"):
        read_state(folder)


def test_secret_is_not_in_the_version_and_must_be_long(exports):
    for path in exports.folders[0].rglob("*"):
        assert path.is_dir() or SECRET not in path.read_bytes()
    assert "secret" not in repr(DeltaExport(secret=SECRET))
    with pytest.raises(ConfigError, match="at least 16"):
        DeltaExport(secret=b"short")


def test_delta_needs_rows_to_spare_and_the_same_types(tmp_path, exports):
    world = World.of(7)
    base = read_state(world.export(tmp_path / "base", spare_rows=0.0, min_spare_rows=3))
    world.step(came=5, went=1)
    with pytest.raises(DeltaError, match=r"'words' has 4 spare rows for 5 new tokens: raise `push\.deltas"):
        Delta.between(base, world.state(base))
    with pytest.raises(DeltaError, match="a delta does not carry"):
        Delta.between(base, read_state(exports.folders[0]))


class Transform(tf.Module):
    """Computes the dense input of a world by a function, which may read tables, assets and variables in `held`."""

    def __init__(self, compute, *held):
        super().__init__()
        self.compute, self.held = compute, list(held)

    def __call__(self, price):
        return {"price": tf.cast(self.compute(price), tf.float32)}


def of_constant(value, folder):
    return Transform(lambda price: tf.equal(price, tf.constant(value)))


def of_called(value, folder):
    inner = tf.function(lambda price: tf.where(price > 0, tf.cast(price, tf.int64), value))
    return Transform(lambda price: tf.cond(tf.size(price) > 1, lambda: inner(price), lambda: inner(-price)))


def of_pattern(value, folder):
    def compute(price):
        return tf.strings.to_number(tf.strings.regex_replace(tf.strings.as_string(price), value, "7"))

    return Transform(compute)


def of_boundary(value, folder):
    return Transform(lambda price: tf.raw_ops.Bucketize(input=price, boundaries=[0.0, value]))


def of_captured(value, folder):
    constant = tf.constant(value, tf.int64)  # outside of the function: it is no operation of it
    return Transform(lambda price: tf.cast(price, tf.int64) > constant)


def of_variable(value, folder):
    variable = tf.Variable(value)
    return Transform(lambda price: price * variable, variable)


def looked_up(initializer):
    table = tf.lookup.StaticHashTable(initializer, -1)
    return Transform(lambda price: table.lookup(tf.strings.as_string(price, precision=0)), table)


def of_table(values, folder):
    return looked_up(tf.lookup.KeyValueTensorInitializer(tf.constant([b"1", b"2"]), tf.constant(values)))


def of_file(lines, folder):
    path, where = folder / "words.txt", tf.lookup.TextFileIndex
    path.write_text(lines)
    return looked_up(tf.lookup.TextFileInitializer(str(path), tf.string, where.WHOLE_LINE, tf.int64, where.LINE_NUMBER))


def of_nested_model(lines, folder):
    """Save a model with an asset, and load it, as Transform's layer does."""
    inner = of_file(lines, folder)
    inner.call = tf.function(inner.compute, input_signature=[tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(inner, str(folder / "inner"))
    loaded = tf.saved_model.load(str(folder / "inner"))
    return Transform(loaded.call, loaded)


ANSWERS = "'signatures/serving_default' .bare_concrete_function"


@pytest.mark.parametrize(
    ("kind", "before", "after", "named"),
    [
        (of_constant, 0.5, 0.6, ANSWERS),
        (of_called, 50, 60, ANSWERS),
        (of_pattern, "1", "2", ANSWERS),
        (of_boundary, 1.0, 2.0, ANSWERS),
        (of_captured, 50, 60, "capture_0' .constant"),
        (of_variable, 2.0, 3.0, "'values of transform/held/0' .variable"),
        (of_table, (3, 4), (4, 3), "'transform/held/0/.*' .constant"),
        (of_file, "1\n2\n", "2\n1\n", "'transform/held/0/.*' .asset"),
        (of_nested_model, "1\n2\n", "2\n1\n", "'transform/held/0/.*' .asset"),
    ],
)
def test_change_that_no_delta_carries_is_named(tmp_path, exports, kind, before, after, named):
    state, states = read_state(exports.folders[0]), []
    for value in (before, after):
        folder, module = tmp_path / str(len(states)), tf.Module()
        folder.mkdir()
        module.transform = transform = kind(value, folder)
        answers = tf.function(lambda price, transform=transform: transform(price))
        signature = answers.get_concrete_function(price=tf.TensorSpec([None], tf.float32))
        tf.saved_model.save(module, folder / "model", signatures={"serving_default": signature})
        fixed = fixed_parts(str(folder / "model"), World.of(7).config())
        states.append(dataclasses.replace(state, layout=dataclasses.replace(state.layout, fixed=fixed)))
    with pytest.raises(DeltaError, match=f"something changed that a delta does not carry: .*{named}"):
        Delta.between(*states)


def test_layout_of_another_format_is_one_error(tmp_path, exports):
    path = tmp_path / LAYOUT
    path.parent.mkdir()
    path.write_text(json.dumps({**json.loads((exports.folders[0] / LAYOUT).read_text()), "format": 1}))
    with pytest.raises(CheckpointError, match="`format` is 1, this release reads 2: the release that wrote it"):
        Layout.load(tmp_path)
