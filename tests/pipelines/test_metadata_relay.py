"""A server of metadata that is not what it says gets neither the password nor a file of this machine."""

import contextlib
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from unittest.mock import MagicMock

import pytest

from embedding_core.errors import StorageError
from pipelines.config.metadata_server import MetadataServer, has_store

SECRET = 'not-a-"word"-5e0d'
OK = b"\x00\x00\x00\x02\x00\x00\x00"
NATIVE, SHA256, SHA2 = b"mysql_native_password", b"sha256_password", b"caching_sha2_password"
SALT = b"abcdefghijklmnopqrst\0"
FLAGS = 0x0001 | 0x0008 | 0x0200 | 0x8000 | 0x80000  # long password, database, protocol 4.1, scrambles, plug-ins


class FakeServer:
    """Sends `answers` in turn, one for each packet of a client, and then OK; keeps the packets."""

    def __init__(self, answers, plugin=NATIVE, flags=FLAGS):
        self.answers, self.plugin, self.flags, self.packets = answers, plugin, flags, []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"mysql://tfx@127.0.0.1:{self.listening.getsockname()[1]}/lineage"
        threading.Thread(target=self.serve, daemon=True).start()

    @property
    def received(self):
        return b"".join(self.packets)

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                self.talk(self.listening.accept()[0])

    def talk(self, peer):
        with peer, peer.makefile("rwb") as stream, contextlib.suppress(OSError):
            self.send(stream, 0, self.greeting())
            answers = iter(self.answers)
            while head := stream.read(4):
                self.packets.append(stream.read(int.from_bytes(head[:3], "little")))
                self.send(stream, head[3] + 1, next(answers, OK))

    def greeting(self):
        flags = struct.pack("<HBHHB10x", self.flags & 0xFFFF, 45, 2, self.flags >> 16, len(SALT))
        name = self.plugin + b"\0"
        return b"\x0a8.0.36\0" + struct.pack("<I", 7) + SALT[:8] + b"\0" + flags + SALT[8:] + name

    def send(self, stream, number, packet):
        stream.write(len(packet).to_bytes(3, "little") + bytes([number]) + packet)
        stream.flush()


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setenv("METADATA_PASSWORD", SECRET)
    with contextlib.ExitStack() as stack:
        yield lambda *given, **more: stack.enter_context(server_of(*given, **more))


@contextlib.contextmanager
def server_of(*given, **more):
    server = FakeServer(*given, **more)
    with server.listening:
        yield server


def switch(plugin):
    return b"\xfe" + plugin + b"\0" + SALT


def refusal(text):
    return b"\xff" + struct.pack("<H", 1045) + b"#28000" + text.encode()


@pytest.mark.parametrize(
    ("plugin", "greeting"),
    [
        *((plugin, NATIVE) for plugin in (b"mysql_clear_password", b"dialog", b"mysql_old_password", SHA256, SHA2)),
        (SHA256, SHA256),  # the server sends a key of its own
        (SHA2, SHA2),
    ],
)
def test_a_plugin_that_shows_the_password_is_refused(fake, plugin, greeting):
    key = [b"\x01\x04", b"\x01-----BEGIN PUBLIC KEY-----"]
    server = fake([*([switch(plugin)] if greeting == NATIVE else key), refusal("no")], plugin=greeting)
    with pytest.raises(StorageError, match=f"asks for the password by the plug-in '{plugin.decode()}'"):
        has_store(server.address)
    assert len(server.packets) == 1  # the login, with a scramble
    assert SECRET.encode() not in server.received


def test_a_server_with_the_oldest_protocol_is_refused(fake):
    server = fake([OK], flags=FLAGS & ~0x0200)
    with pytest.raises(StorageError, match=r"before MySQL 5\.5"):
        has_store(server.address)
    assert server.packets == []


def test_a_password_in_the_servers_error_is_not_shown(fake):
    server = fake([refusal(f"wrong: {SECRET}")])
    with pytest.raises(StorageError, match=r"cannot be reached \(wrong: \*\*\*\)") as error:
        has_store(server.address)
    assert SECRET not in repr(error.getrepr(chain=True))


@pytest.mark.parametrize("answer", [b"", b"\xff"])
def test_an_answer_that_is_no_answer_is_one_error(fake, answer):
    with pytest.raises(StorageError, match="cannot be reached"):
        has_store(fake([OK] * 3 + [answer]).address)


def test_a_lock_that_the_server_released_is_one_error(monkeypatch):
    connection = MagicMock()
    connection.cursor.return_value.__enter__.return_value.fetchone.side_effect = [(1,), (0,)]
    monkeypatch.setattr(MetadataServer, "_connected", lambda _: contextlib.nullcontext(connection))
    server = MetadataServer.of("mysql://tfx@db/lineage")
    with pytest.raises(StorageError, match="released the lock of 'my'"), server.locked("my") as locked:
        assert locked


def test_a_setting_that_the_server_refuses_is_one_error(fake):
    with pytest.raises(StorageError, match=r"cannot be reached \(read-only\)"):
        has_store(fake([OK, refusal("read-only")]).address)


def test_a_ca_file_needs_a_server_with_tls(fake, tmp_path):
    server = fake([OK])
    with pytest.raises(StorageError, match="the server does not offer TLS"):
        has_store(f"{server.address}?ssl-ca={tmp_path}/ca.pem")
    server = fake([OK], flags=FLAGS | 0x0800)
    with pytest.raises(StorageError, match=r"CA file '.*' cannot be used"):
        has_store(f"{server.address}?ssl-ca={tmp_path}/ca.pem")
    assert not any(b"tfx" in packet for packet in server.packets)


@pytest.mark.tfx
@pytest.mark.parametrize("answers", [[switch(b"mysql_old_password")], [OK, OK, "file"]])
def test_the_client_of_ml_metadata_sends_no_secret(fake, tmp_path, answers):
    (tmp_path / "secret").write_text(SECRET)
    server = fake([b"\xfb" + f"{tmp_path}/secret".encode() if answer == "file" else answer for answer in answers])
    code = (
        "import sys, ml_metadata\nfrom pipelines.pipeline.run_target import metadata_connection\n"
        "ml_metadata.MetadataStore(metadata_connection(sys.argv[1]))"
    )
    ran = subprocess.run([sys.executable, "-c", code, server.address], env=os.environ, capture_output=True, check=False)
    assert ran.returncode != 0
    assert len(server.packets) == len(answers)  # its login, the relay's setting, and its first query
    assert SECRET.encode() not in server.received


@pytest.mark.tfx
def test_the_log_does_not_hold_the_password_in_any_form(fake, caplog):
    from pipelines.pipeline.run_target import metadata_connection

    connection = metadata_connection(fake([OK]).address)
    logger = logging.getLogger("absl")
    with caplog.at_level(logging.DEBUG, logger="absl"):
        logger.debug("ConnectionConfig: %s", connection)
        logger.debug("kept")
    assert [record.getMessage() for record in caplog.records] == ["kept"]


def test_the_address_keeps_its_ca_file():
    address = "mysql://me@host:3306/db?ssl-ca=/etc/a%20b.pem"
    server = MetadataServer.of(address)
    assert (server.ca, server.address) == ("/etc/a b.pem", address)
