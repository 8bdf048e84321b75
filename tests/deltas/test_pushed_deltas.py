"""A push is a delta if it can be, and is proven before it leaves; `serve-delta` brings servers up to date."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import dataclasses
import json
import shutil
import threading
from http.server import HTTPServer

import pytest

from components.deltas import push_form
from components.deltas.keys import Deltas
from components.deltas.updates import numbers_of
from components.pusher.publish import publish
from embedding_core.deltas.protocol import MODEL_DIGEST, DeltaError
from embedding_core.deltas.served_state import Layout, LoadedVersion
from embedding_core.errors import ConfigError, ParityError
from pipelines.commands import cli
from pipelines.commands.shared_options import FINDINGS
from support.two_days import CONFIG, write_day
from tests.deltas.rest_server import Handler, serving
from tests.deltas.worlds import SECRET, World
from tests.pipelines.commands.exit_code import exit_code

SETTINGS = Deltas(max_share=5.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return exports of a model that changes, and rows to ask for."""
    folder, world = tmp_path_factory.mktemp("models"), World.of(3)
    folders = [world.export(folder / "0")]
    for number in (1, 2):
        world.step(order=True)
        folders.append(world.export(folder / str(number)))
    return folders, world.requests(30)


@pytest.fixture
def served(models, tmp_path):
    """Return a folder of versions with the first export."""
    publish_whole(models[0][0], tmp_path / "served")
    return tmp_path / "served"


def publish_whole(folder, base):
    facts = {"deltas": {"digest": Layout.load(folder).digest}}
    return publish(folder, base, check=lambda copy: facts, clock=lambda: 1)


def push(served, models, number, settings=SETTINGS, secret=SECRET, check=lambda folder: {"parity": {}}):
    folders, rows = models
    requests = {"serving_default": rows, "embeddings": rows}
    return push_form.push_delta(
        str(served), str(folders[number]), settings=settings, secret=secret, check=check, requests=requests
    )


def test_deltas_are_proven_and_written_in_order(models, served):
    pushed, facts = push(served, models, 1)
    assert (pushed.version, pushed.update) == (1, 1)
    assert facts["deltas"]["proof"] == {"compared": {"serving_default": 30, "embeddings": 30}, "deltas": 1}
    assert push(served, models, 2)[0].update == 2
    assert push(served, models, 2)[0].update == 3  # nothing changed
    assert numbers_of(served, 1) == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"full_every": 1}, "`push.deltas.full_every` is 1"), ({"max_share": 0.01}, "`push.deltas.max_share` is 0.01")],
)
def test_whole_version_is_pushed_if_deltas_are_many_or_large(models, served, settings, reason):
    push(served, models, 1)
    with pytest.raises(DeltaError, match=reason):
        push(served, models, 2, SETTINGS.replace(**settings))
    assert numbers_of(served, 1) == [1]


def test_whole_version_is_pushed_if_the_served_one_does_not_fit(models, tmp_path):
    base = tmp_path / "served"
    with pytest.raises(DeltaError, match="no version was pushed"):
        push(base, models, 1)
    plain = World.of(3).export(tmp_path / "plain", deltas=False)
    publish(plain, base, check=lambda copy: {}, clock=lambda: 1)
    with pytest.raises(DeltaError, match="does not take deltas"):
        push(base, models, 1)
    publish_whole(models[0][0], base)
    push(base, models, 1)
    (base / "deltas" / "2" / "1" / "delta.pb").write_bytes(b"damaged")
    with pytest.raises(DeltaError, match="damaged"):
        push(base, models, 2)


def test_nothing_leaves_without_its_proof(models, served, monkeypatch):
    with pytest.raises(DeltaError, match="the secret is wrong"):
        push(served, models, 1, secret=b"another secret, long")

    def differs(folder):
        raise ParityError("it differs from training")

    with pytest.raises(ParityError):
        push(served, models, 1, check=differs)
    plan = push_form.plan_delta

    def planned_wrongly(*arguments):
        planned = plan(*arguments)
        return dataclasses.replace(planned, link=plan(str(served), str(models[0][2]), SETTINGS).link)

    monkeypatch.setattr(push_form, "plan_delta", planned_wrongly)  # the delta of another model
    with pytest.raises(DeltaError, match="'serving_default' would not be that of the new model"):
        push(served, models, 1)
    assert numbers_of(served, 1) == []


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setattr(cli, "silence", lambda: None)
    monkeypatch.setenv("TFX_EMBEDDINGS_DELTA_SECRET", SECRET.decode())


@pytest.mark.room("shadow")
def test_shadow_compares_with_what_is_served(models, served, command, capsys, monkeypatch, tmp_path):
    """A version with its deltas answers as the export that the last delta is of, and not as its own files."""
    from tests.components.shadow.logs import predict_log, write_log

    push(served, models, 1)
    folders, rows = models
    write_log(tmp_path / "log", [predict_log(examples=rows)])
    with LoadedVersion(folders[1]) as whole:
        outputs = sorted(whole.answer("serving_default", rows[:1]).keys() - {MODEL_DIGEST})
    bounds = [option for output in outputs for option in ("--set", f"outputs.{output}.max=0")]
    compared = ["shadow", served / "1", folders[1], tmp_path / "log", "--json", *bounds]
    assert exit_code(*compared) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["old"]["deltas"], report["new"]["deltas"], report["requests"]["rows"]) == (1, 0, 30)
    assert exit_code("shadow", served / "1", folders[0], *compared[3:]) == FINDINGS
    monkeypatch.setenv("TFX_EMBEDDINGS_DELTA_SECRET", "another secret, long")
    assert exit_code(*compared) == 1
    assert "the secret is wrong" in capsys.readouterr().err
    monkeypatch.delenv("TFX_EMBEDDINGS_DELTA_SECRET")
    assert exit_code(*compared) == 1
    assert "the environment variable 'TFX_EMBEDDINGS_DELTA_SECRET' is not set" in capsys.readouterr().err


def test_serve_delta_brings_servers_up_to_date(models, served, command, capsys, monkeypatch):
    push(served, models, 1)
    with serving(served / "1") as one, serving(served / "1") as other:
        arguments = ["serve-delta", served, "--model", "m", "--server", one.address]
        assert exit_code(*arguments) == 0
        assert "version 1, 1 deltas applied, 0 were there" in capsys.readouterr().out
        push(served, models, 2)
        assert exit_code(*arguments, "--server", other.address) == 0
        out = capsys.readouterr().out
        assert "1 deltas applied, 1 were there" in out
        assert "2 deltas applied, 0 were there" in out
        one.load(served / "1")  # it restarts
        assert exit_code(*arguments) == 0
        with LoadedVersion(models[0][2]) as whole:
            wanted = whole.answer("serving_default", models[1])
            got = one.versions[1].answer("serving_default", models[1])
            assert {name: value.tolist() for name, value in got.items()} == {
                name: value.tolist() for name, value in wanted.items()
            }
        monkeypatch.setenv("TFX_EMBEDDINGS_DELTA_SECRET", "not the secret at all")
        one.load(served / "1")
        assert exit_code(*arguments) == 1
        assert f"{one.address}: the server refused delta 1: the secret is wrong" in capsys.readouterr().err
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
        *[
            (f"http://{host}:8501", "a long enough secret", "use https, or allow it with `--allow-http")
            for host in ("serving", "10.0.0.7", "localhost.example", "[2001:db8::1]")
        ],
        ("http://x", "", "'OTHER' is not set"),
        ("http://x", "short", "at least 16"),
    ],
)
def test_serve_delta_checks_what_it_is_given(served, command, capsys, monkeypatch, server, secret, message):
    monkeypatch.setenv("OTHER", secret)
    assert exit_code("serve-delta", served, "--model", "m", "--server", server, "--secret-variable", "OTHER") == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (200, b"[]", "did not answer as `apply_delta` does"),
        (200, b'{"outputs": {"number": 0}}', "did not answer as `apply_delta` does"),
        (200, b"\xff<html>", "did not answer as `apply_delta` does"),
        (400, b'{"error": "key \\"apply_delta\\" not found"}', "answered 400 for version 1 of model 'm': 'key"),
        (403, b"<html>forbidden", "answered 403 for version 1 of model 'm': '<html>forbidden'"),
    ],
)
def test_serve_delta_names_what_a_stranger_answers(served, command, capsys, status, content, message):
    class Stranger(Handler):
        def reply(self, body):
            return status, content

    with HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        thread = threading.Thread(target=stranger.handle_request)
        thread.start()
        address = f"http://127.0.0.1:{stranger.server_address[1]}"
        assert exit_code("serve-delta", served, "--model", "m", "--server", address) == 1
        thread.join()
    assert message in capsys.readouterr().err


def test_verify_reads_deltas_too(models, served, command, capsys):
    push(served, models, 1)
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


def test_secret_has_to_be_set(monkeypatch):
    monkeypatch.delenv("TFX_EMBEDDINGS_DELTA_SECRET", raising=False)
    with pytest.raises(ConfigError, match="openssl rand"):
        Deltas().secret()
