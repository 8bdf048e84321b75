"""Campaigns of deltas: random chains, wrong deltas, cut requests, and load while deltas are applied.

The short forms run with the other tests; the campaign `deltas` runs the long ones, which print their figures.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import copy
import json
import sys
import time
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from components.deltas.client import apply_chain, rest_call
from components.deltas.push_form import same_bits
from components.deltas.updates import Link
from embedding_core.deltas import graph
from embedding_core.deltas.content import Delta
from embedding_core.deltas.protocol import DeltaError
from embedding_core.deltas.served_state import LoadedVersion, read_state
from tests.deltas.loading import ask_while_written, request_of
from tests.deltas.rest_server import serving
from tests.deltas.whole_exports import WholeExports
from tests.deltas.worlds import SECRET, World

pytestmark = pytest.mark.timeout(7200)


def forms(short, long):
    return [pytest.param(*short, id="short"), pytest.param(*long, id="long", marks=pytest.mark.slow)]


def report(**figures):
    sys.stdout.write(json.dumps(figures) + "\n")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Return worlds with the folder of their export: rows of float32, and of several types."""
    folder, worlds = tmp_path_factory.mktemp("bases"), []
    for number, dtype in enumerate(("float32", {"words": "float16", "items": "int8", "ids": "int8"})):
        world = World.of(20 + number, size=30)
        worlds.append((world, world.export(folder / str(number + 1), rows_dtype=dtype, min_spare_rows=200), dtype))
    return worlds


def random_step(world, draw):
    """Change a world by a random number of rows, tokens and weights; some steps change only one kind of thing."""
    kind = draw.choice(["all", "all", "all", "rows", "tokens", "dense", "nothing"])
    came, went = (int(number) for number in draw.integers(0, 6, 2)) if kind in ("all", "tokens") else (0, 0)
    changed = int(draw.integers(1, 15)) if kind in ("all", "rows") else 0
    world.step(came=came, went=went, changed=changed, dense=kind in ("all", "dense"), order=bool(draw.integers(2)))


def answers_of(version, rows):
    return {name: version.answer(name, rows) for name in ("serving_default", "embeddings")}


def differing(one, other):
    """Return the outputs of `other` that are not the same bits in `one`."""
    return [key for name in other for key in other[name] if not same_bits(one[name][key], other[name][key])]


@pytest.mark.parametrize(("chains", "longest", "exported"), forms((2, 4, 1), (200, 30, 20)))
def test_random_chains_lead_to_what_a_whole_export_serves(tmp_path, bases, chains, longest, exported):
    """After each delta, state and answers are those of a whole export of the model (`whole_exports.py`).

    At the end of `exported` chains, they are compared with those of one more export, which takes deltas itself.
    """
    counts, begin = Counter(), time.perf_counter()
    versions, whole = [LoadedVersion(folder) for _, folder, _ in bases], WholeExports(tmp_path / "whole")
    for chain in range(chains):
        base, folder, dtype = bases[chain % len(bases)]
        world, draw, version = copy.deepcopy(base), np.random.default_rng([7, chain]), versions[chain % len(bases)]
        world.generator = draw
        version.reset()
        published = read_state(folder)
        length = int(draw.integers(1, longest + 1))
        for number in range(1, length + 1):
            random_step(world, draw)
            new = world.state(published)
            delta = Delta.between(published, new)
            request, published = request_of(published, new, number)
            answer = version.call("apply_delta", **request)
            assert answer["applied"] == 1, (chain, number, answer)
            assert version.state().digest() == new.digest() == published.digest(), (chain, number)
            rows = world.requests(40)
            got, wanted = answers_of(version, rows), answers_of(whole.of(world, dtype), rows)
            assert differing(got, wanted) == [], (chain, number)
            assert {one.decode() for name in got for one in got[name]["model_digest"]} == {new.digest()}
            counts.update(links=1, answers=2 * len(rows), content=len(request["delta"]), changed=delta.changed_bytes)
            for one in delta.counts().values():
                counts.update(one)
        if chain % (chains // exported) == 0:
            with LoadedVersion(world.export(tmp_path / f"end-{chain}", rows_dtype=dtype)) as one:
                assert one.state().digest() == published.digest()
                assert differing(got, answers_of(one, rows)) == [], chain
            counts.update(ends=1)
    whole.close()
    seconds = round(time.perf_counter() - begin)
    report(campaign="chains", chains=chains, exports=whole.made, seconds=seconds, **counts)
    assert counts["came"] > 0 < counts["went"]


def damaged(request, others, draw):
    """Return a request that must be refused, and what is wrong with it."""
    kind = str(draw.choice(["secret", "bit", "cut", "missing", "repeated", "base", "digest", "number", "longer"]))
    content = bytearray(request["delta"])
    if kind == "secret":
        return {**request, "secret": SECRET[:-1] + draw.bytes(1) + b"x"}, kind
    if kind == "bit":
        content[int(draw.integers(len(content)))] ^= 1 << int(draw.integers(8))
        return {**request, "delta": bytes(content)}, kind
    if kind in ("missing", "repeated"):
        return others[kind], kind
    if kind in ("base", "digest"):
        return {**request, kind: draw.bytes(32).hex()}, kind
    if kind == "number":
        return {**request, "number": int(draw.integers(-3, 50)) * 10}, kind
    changed = content[: int(draw.integers(len(content)))] if kind == "cut" else content + draw.bytes(3)
    return {**request, "delta": bytes(changed)}, kind


@pytest.mark.parametrize("trials", forms((40,), (500,)))
def test_wrong_deltas_are_refused_and_change_nothing(bases, trials):
    base, folder, _ = bases[0]
    world, draw, requests = copy.deepcopy(base), np.random.default_rng(5), []
    published = read_state(folder)
    for number in (1, 2, 3):
        world.step()
        request, published = request_of(published, world.state(published), number)
        requests.append(request)
    rows, kinds = world.requests(20), {}
    with LoadedVersion(folder) as version:
        assert version.call("apply_delta", **requests[0])["applied"] == 1
        before, state = answers_of(version, rows), version.state().digest()
        for _ in range(trials):
            request, kind = damaged(requests[1], {"missing": requests[2], "repeated": requests[0]}, draw)
            answer = version.call("apply_delta", **request)
            assert (answer["applied"], answer["number"], answer["model_digest"].decode()) == (0, 1, state), kind
            assert differing(answers_of(version, rows), before) == [], kind
            kinds[kind] = kinds.get(kind, 0) + 1
        assert version.state().digest() == state
        assert [version.call("apply_delta", **request)["applied"] for request in requests[1:]] == [1, 1]
    report(campaign="refused", trials=trials, refused=sum(kinds.values()), kinds=kinds)


def link_of(request):
    values = {name: request[name] for name in ("number", "base", "digest", "checksum")}
    return Link(content=request["delta"], **values)


def test_client_cut_off_anywhere_goes_on_where_the_server_is(bases):
    base, folder, _ = bases[0]
    world, published = copy.deepcopy(base), read_state(folder)
    first, chain, cuts = published.digest(), [], 0
    for number in range(1, 6):
        world.step()
        request, published = request_of(published, world.state(published), number)
        chain.append(link_of(request))
    with serving(folder) as server:
        call = rest_call(server.address, "m", int(folder.name), timeout=60.0)
        version = server.versions[int(folder.name)]
        for when in ("before", "after"):
            for place in range(len(chain) + 1):
                version.reset()  # a server that restarted
                served = iter(range(100))
                server.drop = lambda at, when=when, place=place, served=served: at == when and next(served) == place
                with pytest.raises(DeltaError, match="did not answer"):
                    apply_chain(call, first, chain, SECRET)
                server.drop = lambda at: False
                reached = max(0, place - 1) if when == "before" else place
                assert version.state().digest() == [first, *(link.digest for link in chain)][reached]
                done = apply_chain(call, first, chain, SECRET)
                assert (done.before, done.number, done.digest) == (reached, 5, chain[-1].digest)
                cuts += 1
        assert version.state().digest() == published.digest()
        assert apply_chain(call, first, chain, SECRET).before == 5
        with pytest.raises(DeltaError, match="not in this chain"):
            apply_chain(call, first, chain[:3], SECRET)
        with pytest.raises(DeltaError, match=r"404.*has loaded that version"):
            apply_chain(rest_call(server.address, "m", 77), first, chain, SECRET)
        version.reset()
        with pytest.raises(DeltaError, match="the secret is wrong"):
            apply_chain(call, first, chain, b"not the secret at all")
    report(campaign="cut requests", cuts=cuts)


def without_lock(state, signature):
    """Return the signature with the digest of its answer, but without the lock, as `DeltaState.guarded` has it."""
    positional, keywords = signature.structured_input_signature
    specs = {**{one.name: one for one in positional}, **keywords}

    def compute(**named):
        digest = state.digest.read_value()
        batch = tf.shape(next(iter(named.values())))[:1]
        found = {name: tf.identity(one) for name, one in signature(**named).items()}
        return {**found, "model_digest": tf.fill(batch, digest)}

    return tf.function(compute, autograph=False).get_concrete_function(**specs)


def load_while_written(folder, deltas, answers, pause):
    """Export three states of a model, and apply `deltas` that go round them while 8 threads ask."""
    world, folders = World.of(1, size=300), []
    for number in range(3):
        if number:
            world.step(came=20, went=20, changed=250)
        folders.append(world.export(folder / str(number), spare_rows=1.0))
    rows, expected, states, requests = world.requests(60), {}, [], []
    for one in folders:
        with LoadedVersion(one) as version:
            answer = version.answer("serving_default", rows)
            expected[bytes(answer.pop("model_digest")[0])] = answer
            states.append(version.state())
    published = states[0]
    for number in range(1, deltas + 1):
        request, published = request_of(published, states[number % 3], number)
        requests.append(request)
    with LoadedVersion(folders[0]) as version:
        version.call("apply_delta", **{**requests[0], "number": 0})  # prepares the signature, as a warm-up does
        return ask_while_written(version, requests, rows, expected, answers=answers, pause=pause)


@pytest.mark.parametrize(("deltas", "answers", "pause"), forms((40, 2_000, 0.0), (500, 100_000, 0.3)))
def test_no_request_sees_half_a_delta(tmp_path, deltas, answers, pause):
    begin = time.perf_counter()
    seen, spent = load_while_written(tmp_path, deltas, answers, pause)
    assert (seen.errors, seen.torn, len(seen.states)) == ([], 0, 3)
    milliseconds = {
        name: [round(float(value) * 1e3, 2) for value in np.percentile(times, [50, 95, 99])]
        for name, times in (("before", seen.before), ("during", seen.during), ("delta", spent))
    }
    report(
        campaign="load",
        deltas=deltas,
        answers=seen.answers,
        errors=len(seen.errors),
        torn=seen.torn,
        p50_p95_p99_ms=milliseconds,
        seconds=round(time.perf_counter() - begin),
    )


@pytest.mark.slow
def test_without_the_lock_requests_see_half_a_delta(tmp_path, monkeypatch):
    monkeypatch.setattr(graph.DeltaState, "guarded", without_lock)
    seen, _ = load_while_written(tmp_path, 100, 3_000, 0.0)
    assert seen.errors == []
    assert seen.torn > 0
    report(campaign="load without the lock", answers=seen.answers, torn=seen.torn)
