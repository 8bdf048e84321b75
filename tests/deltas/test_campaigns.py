"""Campaigns of deltas: random chains, cut requests, and load while deltas are applied.

The campaign `deltas` runs the long forms, which print their figures.
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
from embedding_core.deltas import graph
from embedding_core.deltas.content import Delta
from embedding_core.deltas.protocol import DeltaError
from embedding_core.deltas.served_state import LoadedVersion, read_state
from tests.deltas.loading import ask_while_written
from tests.deltas.rest_server import serving
from tests.deltas.worlds import SECRET, World, exports_of, link_of, request_of

pytestmark = pytest.mark.timeout(7200)


def report(**figures):
    sys.stdout.write(json.dumps(figures) + "\n")


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return exports_of(tmp_path_factory.getbasetemp())


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


def differing(first, other):
    """Return the outputs of `other` that are not the same bits in `one`."""
    return [key for name in other for key in other[name] if not same_bits(first[name][key], other[name][key])]


@pytest.mark.slow
def test_random_chains_lead_to_what_a_whole_export_serves(tmp_path, bases):
    """After each delta, the state is that of the model; after the last, so are the answers of a whole export."""
    counts, begin = Counter(), time.perf_counter()
    versions = [LoadedVersion(folder) for _, folder, _ in bases]
    for chain in range(200):
        base, folder, dtype = bases[chain % len(bases)]
        world, draw, version = copy.deepcopy(base), np.random.default_rng([7, chain]), versions[chain % len(bases)]
        world.generator = draw
        version.reset()
        published = read_state(folder)
        for number in range(1, int(draw.integers(1, 31)) + 1):
            random_step(world, draw)
            new = world.state(published)
            delta = Delta.between(published, new)
            request, published = request_of(published, new, number)
            answer = version.call("apply_delta", **request)
            assert answer["applied"] == 1, (chain, number, answer)
            assert version.state().digest() == new.digest() == published.digest(), (chain, number)
            counts.update(links=1, content=len(request["delta"]), changed=delta.changed_bytes)
            for count in delta.counts().values():
                counts.update(count)
        rows = world.requests(40)
        with LoadedVersion(world.export(tmp_path / f"end-{chain}", rows_dtype=dtype)) as whole:
            assert whole.state().digest() == published.digest()
            got = answers_of(version, rows)
            assert differing(got, answers_of(whole, rows)) == [], chain
        assert {digest.decode() for name in got for digest in got[name]["model_digest"]} == {published.digest()}
    report(campaign="chains", chains=200, seconds=round(time.perf_counter() - begin), **counts)
    assert counts["came"] > 0 < counts["went"]


def test_client_cut_off_anywhere_goes_on_where_the_server_is(exports):
    folder, first = exports.folders[0], read_state(exports.folders[0]).digest()
    chain = [link_of(request) for request in exports.requests]
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
                assert (done.before, done.number, done.digest) == (reached, 2, chain[-1].digest)
        assert apply_chain(call, first, chain, SECRET).before == 2
        with pytest.raises(DeltaError, match="not in this chain"):
            apply_chain(call, first, chain[:1], SECRET)
        with pytest.raises(DeltaError, match=r"404.*has loaded that version"):
            apply_chain(rest_call(server.address, "m", 77), first, chain, SECRET)
        version.reset()
        with pytest.raises(DeltaError, match="the secret is wrong"):
            apply_chain(call, first, chain, b"not the secret at all")


def without_lock(state, signature):
    """Return the signature with the digest of its answer, but without the lock, as `DeltaState.guarded` has it."""
    positional, keywords = signature.structured_input_signature
    specs = {**{spec.name: spec for spec in positional}, **keywords}

    def compute(**named):
        digest = state.digest.read_value()
        batch = tf.shape(next(iter(named.values())))[:1]
        found = {name: tf.identity(value) for name, value in signature(**named).items()}
        return {**found, "model_digest": tf.fill(batch, digest)}

    return tf.function(compute, autograph=False).get_concrete_function(**specs)


def load_while_written(folders, rows, deltas, answers, pause):
    """Apply `deltas` that go round three exports of a model while 8 threads ask for the rows."""
    expected, states, requests = {}, [], []
    for folder in folders:
        with LoadedVersion(folder) as version:
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


def test_no_request_sees_half_a_delta(exports):
    seen, _ = load_while_written(exports.folders, exports.rows, deltas=20, answers=600, pause=0.0)
    assert (seen.errors, seen.torn, len(seen.states)) == ([], 0, 3)


def large_exports(folder):
    """Return three exports of a model of which a delta changes most, and rows to ask for."""
    world = World.of(1, size=300)
    folders = [world.export(folder / "0", spare_rows=1.0)]
    for number in ("1", "2"):
        world.step(came=20, went=20, changed=250)
        folders.append(world.export(folder / number, spare_rows=1.0))
    return folders, world.requests(60)


@pytest.mark.slow
def test_no_request_sees_half_a_large_delta(tmp_path):
    begin = time.perf_counter()
    seen, spent = load_while_written(*large_exports(tmp_path), deltas=500, answers=100_000, pause=0.3)
    assert (seen.errors, seen.torn, len(seen.states)) == ([], 0, 3)
    phases = {"before": seen.before, "during": seen.during, "delta": spent}
    milliseconds = {name: np.percentile(times, [50, 95, 99]).round(5) * 1e3 for name, times in phases.items()}
    figures = {name: times.round(2).tolist() for name, times in milliseconds.items()}
    seconds = round(time.perf_counter() - begin)
    report(campaign="load", answers=seen.answers, p50_p95_p99_ms=figures, seconds=seconds)


@pytest.mark.slow
def test_without_the_lock_requests_see_half_a_delta(tmp_path, monkeypatch):
    monkeypatch.setattr(graph.DeltaState, "guarded", without_lock)
    seen, _ = load_while_written(*large_exports(tmp_path), deltas=100, answers=3_000, pause=0.0)
    assert seen.errors == []
    assert seen.torn > 0
    report(campaign="load without the lock", answers=seen.answers, torn=seen.torn)
