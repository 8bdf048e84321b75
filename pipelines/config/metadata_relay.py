"""Stands between the clients of ML Metadata and a MySQL server: a process with a Unix socket, which trusts no server.

ML Metadata's client (MariaDB Connector/C, linked with BoringSSL) fails every check of a host name, and checks nothing
without it. It answers a server that asks for its oldest scramble, and sends any file of this machine that a server asks
for (`LOAD DATA LOCAL`). None of this can be turned off from outside, so this process does what the client does not:

- With a CA file it speaks TLS, and checks the certificate and its host name before a client's login leaves the machine.
- A client proves its password by `mysql_native_password` only, which does not show it to the server. Every other
  plug-in is refused, whether it sends the password in clear or encrypted with a key that the server chose.
- After the login it passes on commands, and no content of a file.
- It asks MariaDB for MySQL's rule of repeatable reads. Since MariaDB 11.6.2, a transaction that locks a row which
  another one has changed ends with an error, and ML Metadata does not try again.

The process is started by its path, imports the standard library only, and never holds the password. It ends with the
process that started it. A client holds Python's GIL while it waits, so a thread of that process could not do this.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import struct
import sys
import threading

NATIVE = "mysql_native_password"
SECONDS = 10
"""Seconds to wait for each answer of a server until a client is logged in."""

_PROTOCOL_41, _COMPRESS, _TLS, _SCRAMBLES, _PLUGINS = 0x200, 0x20, 0x800, 0x8000, 0x80000
_OK, _SWITCH, _ERROR = 0x00, 0xFE, 0xFF
_COMMANDS = (b"\x01", b"\x02", b"\x03", b"\x0e")  # quit, use a database, query, ping
_AS_MYSQL = b"\x03SET @ignored = 0 /*M!110602 , SESSION innodb_snapshot_isolation = OFF */"  # a comment for others
_LOGIN_BYTES = 1 << 16
_FULL = (1 << 24) - 1  # a longer message goes on in the next packet


class _RefusedError(Exception):
    """Why a server or a client is refused."""


def main(path: str, host: str, port: str, ca: str) -> None:
    """Serve until standard input ends; print a line when a client can connect."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    sys.stdout.write("ready\n")  # the starting process waits for it
    sys.stdout.flush()
    threading.Thread(target=_accept, args=(listening, host, int(port), ca), daemon=True).start()
    sys.stdin.buffer.read()
    with contextlib.suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))


def _accept(listening: socket.socket, host: str, port: int, ca: str) -> None:
    while True:
        client = listening.accept()[0]
        threading.Thread(target=_serve, args=(client, host, port, ca), daemon=True).start()


def _serve(client: socket.socket, host: str, port: int, ca: str) -> None:
    with client:
        try:
            with _logged_in(client, host, port, ca) as server:
                _pass_on(client, server)
        except (OSError, EOFError, ValueError, _RefusedError):
            return  # the client has been told, or has gone


def _logged_in(client: socket.socket, host: str, port: int, ca: str) -> socket.socket:
    """Return the connection to the server when it has accepted the client; tell the client why it was refused."""
    number = 0
    try:
        server = socket.create_connection((host, port), timeout=SECONDS)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a lock waits for hours without a command
        if hasattr(socket, "TCP_KEEPIDLE"):
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        _, greeting = _read(server, _LOGIN_BYTES)
        if greeting[:1] == bytes([_ERROR]):
            _send(client, 0, greeting)
            raise EOFError
        greeting, plugin = _checked_greeting(greeting, with_tls=bool(ca))
        _send(client, 0, greeting)
        number, login = _read(client, _LOGIN_BYTES)
        shift = 0
        if ca:
            login = _with_flag(login, _TLS)
            _send(server, number, login[:32])
            server = _with_tls(server, host, ca)
            shift = 1  # the request for TLS was one message more
        _send(server, number + shift, login)
        while True:
            answered, packet = _read(server, _LOGIN_BYTES)
            kind = packet[0] if packet else _OK
            if kind == _SWITCH:
                plugin = packet[1:].partition(b"\0")[0].decode("latin-1") or "mysql_old_password"
            if kind not in (_OK, _ERROR) and (kind != _SWITCH or plugin != NATIVE):
                raise _RefusedError(
                    f"the server asks for the password by the plug-in {plugin!r}, which may show it to the server; "
                    f"only {NATIVE!r} is used: make the user with IDENTIFIED WITH {NATIVE}"
                )
            if kind == _OK:
                _send(server, 0, _AS_MYSQL)
                _, answer = _read(server, _LOGIN_BYTES)
                packet = answer if answer[:1] == bytes([_ERROR]) else packet
            _send(client, answered - shift, packet)
            if kind in (_OK, _ERROR):
                server.settimeout(None)
                return server
            number, packet = _read(client, _LOGIN_BYTES)
            _send(server, number + shift, packet)
    except (OSError, EOFError, ValueError, _RefusedError) as error:
        text = str(error) or "the server ended the connection"
        _send(client, number + 1 if number else 0, b"\xff" + struct.pack("<H", 2000) + b"#HY000" + text.encode())
        raise


def _checked_greeting(greeting: bytes, *, with_tls: bool) -> tuple[bytes, str]:
    """Return the greeting without TLS and compression, which are not for the client, and the plug-in that it names."""
    flags_at = greeting.find(b"\0", 1) + 14
    if greeting[:1] != b"\x0a" or flags_at < 14 or len(greeting) < flags_at + 7:
        raise _RefusedError("it does not speak MySQL's protocol")
    low, high = (struct.unpack("<H", greeting[at : at + 2])[0] for at in (flags_at, flags_at + 5))
    flags = low | high << 16
    if with_tls and not flags & _TLS:
        raise _RefusedError("the address names a CA file, but the server does not offer TLS")
    needed = _PROTOCOL_41 | _SCRAMBLES | _PLUGINS
    if flags & needed != needed:
        raise _RefusedError("the server asks for a password as servers before MySQL 5.5 did, which would show it")
    low &= ~(_TLS | _COMPRESS)
    plugin = greeting[flags_at + 30 :].strip(b"\0").decode("latin-1")
    return greeting[:flags_at] + struct.pack("<H", low) + greeting[flags_at + 2 :], plugin


def _with_flag(login: bytes, flag: int) -> bytes:
    flags = struct.unpack("<I", login[:4])[0] | flag
    return struct.pack("<I", flags) + login[4:]


def _with_tls(server: socket.socket, host: str, ca: str) -> socket.socket:
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise _RefusedError(f"its CA file {ca!r} cannot be used ({error})") from error
    return context.wrap_socket(server, server_hostname=host)


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    """Pass on the client's commands and all that the server answers, until one of the two ends."""
    with selectors.DefaultSelector() as ready:
        for end in (client, server):
            ready.register(end, selectors.EVENT_READ)
        is_continued = False
        while True:
            ends = [key.fileobj for key, _ in ready.select()]
            if server in ends and not _pass_answer(server, client):
                return
            if client in ends:
                number, packet = _read(client, _FULL)
                if not is_continued and (number != 0 or packet[:1] not in _COMMANDS):
                    return  # the content of a file
                is_continued = len(packet) == _FULL
                _send(server, number, packet)


def _pass_answer(server: socket.socket, client: socket.socket) -> bool:
    """Send what has arrived to the client; return whether the server is still there."""
    server.settimeout(0)  # what has arrived may be TLS' own, with nothing for the client
    try:
        while True:
            content = server.recv(1 << 16)
            if not content:
                return False
            client.sendall(content)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    finally:
        server.settimeout(None)


def _read(end: socket.socket, most: int) -> tuple[int, bytes]:
    """Return the number of the next packet, and its content."""
    head = _exactly(end, 4)
    size = int.from_bytes(head[:3], "little")
    if size > most:
        raise _RefusedError(f"a message has {size} bytes where {most} are the most")
    return head[3], _exactly(end, size)


def _exactly(end: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        more = end.recv(size - len(content))
        if not more:
            raise EOFError
        content += more
    return bytes(content)


def _send(end: socket.socket, number: int, packet: bytes) -> None:
    end.sendall(len(packet).to_bytes(3, "little") + bytes([number % 256]) + packet)


if __name__ == "__main__":
    main(*sys.argv[1:])
