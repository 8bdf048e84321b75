"""A push is a delta if it can be, and is proven before it leaves; `serve-delta` brings servers up to date."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import dataclasses
import json
import shutil

import pytest

from components.deltas import push_form
from components.deltas.keys import Deltas
from components.deltas.updates import numbers_of, publish_delta, read_chain
from components.pusher.publish import publish
from embedding_core.deltas.content import Delta
from embedding_core.deltas.protocol import MODEL_DIGEST, DeltaError
from embedding_core.deltas.served_state import Layout, LoadedVersion
from embedding_core.errors import ParityError
from pipelines.commands import cli
from tests.deltas.rest_server import serving
from tests.deltas.worlds import SECRET, exports_of, link_of
from tests.pipelines.commands.exit_code import exit_code
from tests.support.tf_examples import write_rows
from tests.support.two_days import CONFIG, write_day

SETTINGS = Deltas(max_share=5.0)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return exports_of(tmp_path_factory.getbasetemp())


@pytest.fixture
def served(exports, tmp_path):
    """Return a folder of versions with the first export."""
    facts = {"deltas": {"digest": Layout.load(exports.folders[0]).digest}}
    publish(exports.folders[0], tmp_path / "served", check=lambda copy: facts, clock=lambda: 1)
    return tmp_path / "served"


def add_delta(served, exports, number):
    """Publish delta 1 or 2 without a proof."""
    chain = read_chain(served, 1, exports.requests[0]["base"])
    publish_delta(served, 1, chain, link_of(exports.requests[number - 1]))


def push(served, exports, number, settings=SETTINGS, secret=SECRET, check=lambda folder: {"parity": {}}):
    requests = dict.fromkeys(("serving_default", "embeddings"), exports.rows)
    exported = str(exports.folders[number])
    return push_form.push_delta(str(served), exported, settings=settings, secret=secret, check=check, requests=requests)


def test_deltas_are_proven_and_written_in_order(exports, served):
    pushed, facts = push(served, exports, 1)
    assert (pushed.version, pushed.update) == (1, 1)
    assert facts["deltas"]["proof"] == {"compared": {"serving_default": 30, "embeddings": 30}, "deltas": 1}
    add_delta(served, exports, 2)
    assert push(served, exports, 2)[0].update == 3  # nothing changed
    assert numbers_of(served, 1) == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"full_every": 1}, "`push.deltas.full_every` is 1"), ({"max_share": 0.01}, "`push.deltas.max_share` is 0.01")],
)
def test_whole_version_is_pushed_if_deltas_are_many_or_large(exports, served, settings, reason, monkeypatch):
    add_delta(served, exports, 1)
    monkeypatch.delattr(Delta, "to_bytes")  # a large delta is refused before it is serialized
    with pytest.raises(DeltaError, match=reason):
        push(served, exports, 2, SETTINGS.replace(**settings))
    assert numbers_of(served, 1) == [1]


def test_whole_version_is_pushed_if_the_served_one_does_not_fit(exports, served, tmp_path):
    base, plain = tmp_path / "other", tmp_path / "plain"
    with pytest.raises(DeltaError, match="there is no version to base"):
        push(base, exports, 1)
    plain.mkdir()
    (plain / "saved_model.pb").write_bytes(b"an export without deltas")
    publish(plain, base, check=lambda copy: {})
    with pytest.raises(DeltaError, match="does not take deltas"):
        push(base, exports, 1)
    add_delta(served, exports, 1)
    (served / "deltas" / "1" / "1" / "delta.pb").write_bytes(b"damaged")
    with pytest.raises(DeltaError, match="damaged"):
        push(served, exports, 2)


def test_nothing_leaves_without_its_proof(exports, served, monkeypatch):
    with pytest.raises(DeltaError, match="the secret is wrong"):
        push(served, exports, 1, secret=b"another secret, long")

    def differs(folder):
        raise ParityError("it differs from training")

    with pytest.raises(ParityError):
        push(served, exports, 1, check=differs)
    plan = push_form.plan_delta

    def planned_wrongly(*arguments):
        planned = plan(*arguments)
        return dataclasses.replace(planned, link=plan(str(served), str(exports.folders[2]), SETTINGS).link)

    monkeypatch.setattr(push_form, "plan_delta", planned_wrongly)  # the delta of another model
    with pytest.raises(DeltaError, match="'serving_default' would not be that of the new model"):
        push(served, exports, 1)
    assert numbers_of(served, 1) == []


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setattr(cli, "silence", lambda: None)
    monkeypatch.setenv("TFX_EMBEDDINGS_DELTA_SECRET", SECRET.decode())


@pytest.mark.room("shadow")
def test_shadow_compares_with_what_is_served(exports, served, command, capsys, tmp_path):
    """A version with its deltas answers as the export that the last delta is of, and not as its own files."""
    from tests.components.shadow.logs import predict_log

    add_delta(served, exports, 1)
    write_rows(tmp_path / "log", [predict_log(examples=exports.rows)])
    with LoadedVersion(exports.folders[1]) as whole:
        outputs = sorted(whole.answer("serving_default", exports.rows[:1]).keys() - {MODEL_DIGEST})
    bounds = [option for output in outputs for option in ("--set", f"outputs.{output}.max=0")]
    assert exit_code("shadow", served / "1", exports.folders[1], tmp_path / "log", "--json", *bounds) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["old"]["deltas"], report["new"]["deltas"], report["requests"]["rows"]) == (1, 0, 30)


def test_serve_delta_brings_servers_up_to_date(exports, served, command, capsys, monkeypatch):
    add_delta(served, exports, 1)
    with serving(served / "1") as first, serving(served / "1") as other:
        arguments = ["serve-delta", served, "--model", "m", "--server", first.address]
        assert exit_code(*arguments) == 0
        assert "version 1, 1 deltas applied, 0 were there" in capsys.readouterr().out
        add_delta(served, exports, 2)
        assert exit_code(*arguments, "--server", other.address) == 0
        out = capsys.readouterr().out
        assert "1 deltas applied, 1 were there" in out
        assert "2 deltas applied, 0 were there" in out
        first.versions[1].reset()  # it restarts
        assert exit_code(*arguments) == 0
        assert first.versions[1].state().digest() == Layout.load(exports.folders[2]).digest
        monkeypatch.setenv("TFX_EMBEDDINGS_DELTA_SECRET", "not the secret at all")
        first.versions[1].reset()
        assert exit_code(*arguments) == 1
        assert f"{first.address}: the server refused delta 1: the secret is wrong" in capsys.readouterr().err
    assert exit_code(*arguments) == 1
    assert "did not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("server", "secret", "message"),
    [
        *[
            (address, "a long enough secret", "such as http://localhost:8501")
            for address in ("ftp://x", "localhost:8501", "http://x:99999", "http://x:a", "http://[::1", "http://a b:1")
        ],
        ("http://user:word@x", "a long enough secret", "'http://...@x'"),
        ("http://serving:8501", "a long enough secret", "use https, or allow it with `--allow-http"),
        ("http://x", "", "'OTHER' is not set"),
        ("http://x", "short", "at least 16"),
    ],
)
def test_serve_delta_checks_what_it_is_given(served, command, capsys, monkeypatch, server, secret, message):
    monkeypatch.setenv("OTHER", secret)
    assert exit_code("serve-delta", served, "--model", "m", "--server", server, "--secret-variable", "OTHER") == 1
    assert message in capsys.readouterr().err


def test_verify_reads_deltas_too(exports, served, command, capsys):
    add_delta(served, exports, 1)
    assert exit_code("verify", served / "1") == 0
    assert "1 deltas" in capsys.readouterr().out
    (served / "deltas" / "1" / "1" / "delta.pb").write_bytes(b"damaged")
    assert exit_code("verify", served / "1") == 1
    assert "'delta.pb' is not what its manifest says" in capsys.readouterr().err
    shutil.rmtree(served / "deltas" / "1" / "1")
    assert exit_code("verify", served / "1") == 1
    assert "delta 1 of version 1 is missing" in capsys.readouterr().err


def test_run_and_follow_want_the_secret_before_loading_anything(tmp_path, monkeypatch, command, capsys):
    write_day(tmp_path, 1, range(30))
    (tmp_path / "my.yaml").write_text(CONFIG + "push: {deltas: true}\n")
    monkeypatch.delenv("TFX_EMBEDDINGS_DELTA_SECRET")
    for name in ("run", "follow"):
        assert exit_code(name, tmp_path / "my.yaml") == 1
        assert "'TFX_EMBEDDINGS_DELTA_SECRET' is not set" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
