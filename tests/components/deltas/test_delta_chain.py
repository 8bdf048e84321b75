"""Deltas are written whole, in order, behind the newest version; chains with a fault and wrong servers are refused."""

import contextlib
import itertools
import json
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from components.deltas.client import NOTHING, apply_chain, rest_call
from components.deltas.updates import (
    UPDATES,
    Link,
    folder_of,
    numbers_of,
    publish_delta,
    read_chain,
)
from components.pusher.publish import keep_newest, publish, roll_back, set_version_aside
from components.pusher.served import damage_of, served_facts, served_versions
from embedding_core.deltas.protocol import DeltaError
from embedding_core.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.light


def link(number, base=None):
    digest = f"digest {number}"
    base = base or f"digest {number - 1}"
    return Link(number=number, base=base, digest=digest, checksum="7", content=b"x" * number, facts={"of": number})


@pytest.fixture
def base(tmp_path):
    """Return a folder of two versions, of which the second one has two deltas."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "saved_model.pb").write_bytes(b"a model")
    facts = {"deltas": {"digest": "digest 0"}}
    for number in (1, 2):
        publish(tmp_path / "model", tmp_path / "served", check=lambda path: facts, clock=lambda second=number: second)
    for number in (1, 2):
        publish_delta(tmp_path / "served", 2, read_chain(tmp_path / "served", 2, "digest 0"), link(number))
    return tmp_path / "served"


def test_chain_is_read_in_order(base):
    assert read_chain(base, 2, "digest 0") == [link(1), link(2)]
    assert read_chain(base, 1, "digest 0") == []
    assert served_versions(base) == [1, 2]
    assert (served_facts(str(base), 2), served_facts(str(base), 1)) == ({"of": 2}, {"deltas": {"digest": "digest 0"}})


@pytest.mark.parametrize("name", ["delta.pb", "manifest.json"])
def test_damaged_delta_is_named(base, name):
    path = base / "deltas" / "2" / "1" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="damaged"):
        read_chain(base, 2, "digest 0")


def test_missing_and_moved_deltas_and_another_base_are_refused(base):
    with pytest.raises(CheckpointError, match="not based on"):
        read_chain(base, 2, "digest 9")
    (base / "deltas" / "2" / "1").rename(base / "deltas" / "2" / "3")
    with pytest.raises(CheckpointError, match="delta 1 of version 2 is missing"):
        read_chain(base, 2, "digest 0")
    (base / "deltas" / "2" / "2").rename(base / "deltas" / "2" / "1")
    with pytest.raises(CheckpointError, match="was moved"):
        read_chain(base, 2, "digest 0")


@pytest.mark.parametrize(
    ("version", "known", "number"), [(1, 0, 1), (2, 1, 2), (2, 2, 4)], ids=["old version", "other push", "gap"]
)
def test_delta_behind_another_push_is_refused(base, version, known, number):
    chain = read_chain(base, version, "digest 0")[:known]
    with pytest.raises(DeltaError, match="another push came first"):
        publish_delta(base, version, chain, link(number))
    assert (numbers_of(base, 1), numbers_of(base, 2)) == ([], [1, 2])


@pytest.mark.parametrize("removed", ["deltas/2/2", "deltas/2", "deltas"])
def test_removed_newest_deltas_are_noticed(base, removed):
    assert damage_of(str(base), 2) is None
    shutil.rmtree(base / removed)
    assert "of version 2 is missing" in damage_of(str(base), 2)
    assert UPDATES.last(base, 2) == 2
    with pytest.raises(CheckpointError, match="is missing"):
        UPDATES.read(base / "2", {"deltas": {"digest": "digest 0"}})
    with pytest.raises(DeltaError, match="another push came first"):
        publish_delta(base, 2, [link(1)], link(2))


def test_delta_whose_push_died_is_not_read_and_is_written_again(base):
    (base / ".deltas-2-2").rename(base / ".deltas-2-1")  # as if it was killed before the last rename
    assert damage_of(str(base), 2) is None
    assert read_chain(base, 2, "digest 0") == [link(1)]
    publish_delta(base, 2, [link(1)], link(2))
    assert read_chain(base, 2, "digest 0") == [link(1), link(2)]
    assert [path.name for path in base.glob(".deltas-*")] == [".deltas-2-2"]


def test_deltas_whose_recorded_end_is_gone_are_read(base):
    (base / ".deltas-2-2").unlink()
    assert read_chain(base, 2, "digest 0") == [link(1), link(2)]
    publish_delta(base, 2, [link(1), link(2)], link(3))
    shutil.rmtree(base / "deltas" / "2" / "3")
    assert "delta 3 of version 2 is missing" in damage_of(str(base), 2)


def test_delta_that_cannot_be_written_leaves_the_others(base, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("components.deltas.updates.sync_tree", full)
    with pytest.raises(CheckpointError, match=r"No space left.*unchanged"):
        publish_delta(base, 2, read_chain(base, 2, "digest 0"), link(3))
    assert sorted(path.name for path in (base / "deltas" / "2").iterdir()) == ["1", "2"]


def test_rollback_copies_deltas_and_keep_last_removes_them(base):
    publish(base.parent / "model", base, check=lambda path: {}, clock=lambda: 3)
    copy = roll_back(base, to=2)
    assert copy.update == 2
    assert read_chain(base, copy.version, "digest 0") == [link(1), link(2)]
    assert roll_back(base, to=1).update == 0
    assert len(served_versions(base)) == 5
    assert keep_newest(base, 2) == [1, 2, 3]
    assert [path.name for path in (base / "deltas").iterdir()] == [str(copy.version)]
    assert [path.name for path in base.glob(".deltas-*")] == [f".deltas-{copy.version}-2"]
    assert folder_of(base, copy.version) == str(base / "deltas" / str(copy.version))


def test_new_version_has_no_deltas_of_a_gone_one_of_its_number(base):
    (base / "2").rename(base.parent / "away")
    assert publish(base.parent / "model", base, check=lambda path: {}, clock=lambda: 2).version == 2
    assert (numbers_of(base, 2), UPDATES.last(base, 2)) == ([], 0)


def test_deltas_of_an_earlier_version_that_is_gone_are_removed(base):
    publish(base.parent / "model", base, check=lambda path: {}, clock=lambda: 3)
    (base / "2").rename(base.parent / "away")
    publish(base.parent / "model", base, check=lambda path: {}, clock=lambda: 4)
    assert [*(base / "deltas").iterdir(), *base.glob(".deltas-*")] == []


def test_deltas_of_a_version_set_aside_are_kept(base):
    set_version_aside(base, 2)
    assert publish(base.parent / "model", base, check=lambda path: {}, clock=lambda: 3).version == 3
    assert numbers_of(base, 2) == [1, 2]


def test_version_with_a_damaged_delta_is_not_rolled_back_to(base):
    (base / "deltas" / "2" / "2" / "delta.pb").write_bytes(b"")
    publish(base.parent / "model", base, check=lambda path: {}, clock=lambda: 3)
    with pytest.raises(CheckpointError, match="damaged"):
        roll_back(base, to=2)
    assert served_versions(base) == [1, 2, 3]


@contextlib.contextmanager
def stranger(answers):
    """Serve each request with the bytes that a function yields, until the client goes away; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            with contextlib.suppress(OSError):
                for part in answers():
                    self.wfile.write(part)
            self.close_connection = True

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def whole(status, content):
    return lambda: [b"HTTP/1.0 %d answer\r\n\r\n" % status, content]


def outputs(**changed):
    found = {"applied": 1, "number": 0, "reason": "", "model_digest": "digest 0", **changed}
    return whole(200, json.dumps({"outputs": found}).encode())


NO_ANSWERS = (b"[]", b"[" * 60_000, b"\xff<html>", b'{"outputs": {"number": 0}}')
NO_ANSWERS += (b'{"outputs": {"applied": 1, "number": 1e999}}',)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        *(
            (whole(200, content), "did not answer as `apply_delta` does")
            for content in (b"[" * 60_000, b"[]", b"\xff<html>")
        ),
        (whole(200, b'{"outputs": {"number": 0}}'), "did not answer as `apply_delta` does"),
        (whole(200, b'{"outputs": {"applied": 1, "number": 1e999}}'), "did not answer as `apply_delta` does"),
        (whole(500, b'{"error": ' + b"[" * 60_000), r"answered 500 .* '\{\"error\": \[\["),
        (whole(400, b'{"error": "key \\"apply_delta\\" not found"}'), "answered 400 for version 2 of model 'm': 'key"),
        (whole(403, b"<html>forbidden"), "answered 403 for version 2 of model 'm': '<html>forbidden'"),
        (lambda: itertools.chain(whole(200, b"")(), itertools.repeat(b" " * 1000)), "more than 65,536 bytes"),
        (lambda: itertools.chain(whole(500, b"")(), itertools.repeat(b"x" * 1000)), "answered 500"),
        (outputs(number=-1, model_digest="digest 1"), "not in this chain"),
        (outputs(), "says that it applied delta 1, and serves 'digest 0'"),
    ],
)
def test_client_names_what_a_wrong_server_answers(answers, message):
    with stranger(answers) as address, pytest.raises(DeltaError, match=message):
        apply_chain(rest_call(address, "m", 2), "digest 0", [link(1)], b"secret")


def slowly(*, in_headers):
    """Yield bytes that never end, each long before the client's patience with one read ends."""
    yield b"HTTP/1.0 200 OK\r\n"
    yield b"" if in_headers else b"\r\n"
    while True:
        time.sleep(0.05)
        yield b"x"


@pytest.mark.parametrize("in_headers", [True, False])
def test_client_ends_a_request_at_its_deadline(in_headers):
    late = pytest.raises(DeltaError, match=r"did not answer .* was not complete after 0\.5 s")
    with stranger(lambda: slowly(in_headers=in_headers)) as address, late:
        rest_call(address, "m", 2, timeout=0.5)(**NOTHING)


def test_delta_is_sent_without_tls_only_to_named_hosts():
    for host in ("localhost", "127.0.0.2", "[::1]"):
        rest_call(f"http://{host}:8501", "m", 1)
    rest_call("https://serving:8501", "m", 1)
    rest_call("http://Serving:8501", "m", 1, plain_hosts=("serving",))
    for host in ("serving", "10.0.0.7", "localhost.example", "[2001:db8::1]"):
        with pytest.raises(ConfigError, match="without TLS, the secret and the tokens of the delta could be read"):
            rest_call(f"http://{host}:8501", "m", 1, plain_hosts=("other",))
