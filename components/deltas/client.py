"""Applies the deltas of a version to a server that runs, through the signature `apply_delta`.

A server says which delta it has applied last. Those after it are sent in order, so a server that restarted or missed
some reaches the same state, and repeating the command changes nothing.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.client
import ipaddress
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from components.deltas.keys import secret_in
from components.deltas.updates import Link, exported_digest, read_chain, version_with_deltas
from components.pusher.served import manifest_facts, served_versions
from embedding_core.deltas.protocol import APPLY_DELTA, MODEL_DIGEST, DeltaError
from embedding_core.errors import ConfigError
from embedding_core.storage import StrPath, is_remote

Call: TypeAlias = Callable[..., Mapping[str, Any]]
"""A call of `apply_delta`: takes its inputs by name (int, str or bytes), and returns its outputs."""
NOTHING: Mapping[str, Any] = {"number": 0, "base": "", "digest": "", "checksum": "", "delta": b"", "secret": b""}
"""The inputs of a call that changes nothing, and says what is served."""
_TIMEOUT = 60.0
_LARGEST_ANSWER = 1 << 16
"""Bytes of an answer that are read; `apply_delta` answers with two numbers, a digest and a reason."""


@dataclasses.dataclass(frozen=True)
class Applied:
    """What a server did.

    Attributes:
      before: number of the last delta that it had.
      number: number of the last delta that it has now.
      digest: digest of what it serves.
    """

    before: int
    number: int
    digest: str


def newest_chain(destination: str) -> tuple[int, str, list[Link]]:
    """Read the newest version's number, the digest of what it was exported with, and its deltas.

    Raises:
      ConfigError: the folder has no version, or the newest one does not take deltas.
      CheckpointError: a delta is missing or damaged.
    """
    versions = served_versions(destination)
    if not versions:
        raise ConfigError(f"{destination!r} has no version: name the folder of versions, such as runs/x/serving.")
    first = exported_digest(manifest_facts(destination, versions[-1]))
    if not first:
        raise ConfigError(
            f"version {versions[-1]} of {destination!r} does not take deltas: set `push.deltas: true`, and push again."
        )
    return versions[-1], first, read_chain(destination, versions[-1], first)


def apply_chain(server: Any, first: str, chain: Sequence[Link], secret: bytes) -> Applied:
    """Apply those deltas of a version that a server does not have yet.

    Args:
      server: a `Call`, or a version that `tf.saved_model.load` loaded.
      first: digest of the state that the version was exported with.
      chain: the version's deltas, in order.
      secret: the secret that the version was exported with.

    Raises:
      DeltaError: the server serves something that is not in the chain, or refused a delta; those before it are applied.
    """
    call = server if callable(server) else _call_of(server)
    number, digest = _ask(call)
    digests = [first, *(link.digest for link in chain)]
    if not 0 <= number < len(digests) or digests[number] != digest:
        raise DeltaError(
            f"the server has applied delta {number} and serves {digest[:12]}..., which is not in this chain of "
            f"{len(chain)} deltas: let it load the newest version again, and repeat the command."
        )
    before = number
    for link in chain[number:]:
        answer = call(
            number=link.number,
            base=link.base,
            digest=link.digest,
            checksum=link.checksum,
            delta=link.content,
            secret=secret,
        )
        number, digest = int(answer["number"]), _text(answer[MODEL_DIGEST])
        if digest != link.digest and int(answer["applied"]):
            raise DeltaError(
                f"the server says that it applied delta {link.number}, and serves {digest[:12]!r}..., not "
                f"{link.digest[:12]}...: check that the address is that of TensorFlow Serving's REST interface."
            )
        if digest != link.digest:
            raise DeltaError(
                f"the server refused delta {link.number}: {_text(answer['reason'])}; it serves delta {number}, "
                "unchanged."
            )
    return Applied(before, number, digest)


def apply_updates(folder: StrPath, ask: Callable[[str, Mapping[str, Any]], Any], secret_variable: str | None) -> int:
    """Apply the deltas of the version in a folder to a process that loaded it.

    Args:
      folder: folder of the version; one without deltas stays as it is, and so does one in an object store.
      ask: sends inputs by name to a signature; the answer has `outputs` by name, or None and an `error`.
      secret_variable: environment variable of the secret; None for the default.

    Returns:
      The number of the last delta.

    Raises:
      ConfigError: the secret is not set.
      CheckpointError: a delta is missing or damaged.
      DeltaError: the version refuses a delta, as it does if the secret is another one.
    """
    found = None if is_remote(folder) else version_with_deltas(folder)
    if found is None:
        return 0
    secret, first = secret_in(secret_variable), exported_digest(manifest_facts(*found))

    def call(**inputs: Any) -> Mapping[str, Any]:
        answer = ask(APPLY_DELTA, inputs)
        if answer.outputs is None:
            raise DeltaError(f"{folder!r} cannot take its deltas: {answer.error}; push a whole version.")
        outputs: Mapping[str, Any] = answer.outputs
        return outputs

    return apply_chain(call, first, read_chain(*found, first), secret).number


def _ask(call: Call) -> tuple[int, str]:
    answer = call(**NOTHING)
    return int(answer["number"]), _text(answer[MODEL_DIGEST])


def _text(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    return value.decode() if isinstance(value, bytes) else str(value)


def _call_of(loaded: Any) -> Call:
    import tensorflow as tf

    function = loaded.signatures[APPLY_DELTA]

    def call(**inputs: Any) -> Mapping[str, Any]:
        number = tf.constant(inputs.pop("number"), tf.int64)
        found = function(number=number, **{name: tf.constant(value) for name, value in inputs.items()})
        return {name: value.numpy() for name, value in found.items()}

    return call


def rest_call(
    server: str, model: str, version: int, timeout: float = _TIMEOUT, plain_hosts: Collection[str] = ()
) -> Call:
    """Return a call over the REST interface of TensorFlow Serving.

    Args:
      server: address, such as http://localhost:8501.
      model: name of the model on the server.
      version: number of the version, which the server must have loaded.
      timeout: seconds from the start of a request to the end of its answer; to connect, as long for each address of
        the host.
      plain_hosts: hosts beyond loopback to which secret and delta, which may hold private tokens, are sent over http.

    Raises:
      ConfigError: the address is not one of http or https, or has more than a host, a port and a path; or it is one
        of http, and its host is neither of loopback nor one of `plain_hosts`.
    """
    address, port = _address(server)
    _check_encrypted(address, plain_hosts)
    path = f"{address.path.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}/versions/{version}:predict"
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection

    def call(**inputs: Any) -> Mapping[str, Any]:
        body = json.dumps(
            {"signature_name": APPLY_DELTA, "inputs": {name: _json(value) for name, value in inputs.items()}}
        )
        connection = kind(str(address.hostname), port, timeout=timeout)
        try:
            with _deadline(connection, timeout):
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                content = response.read(_LARGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DeltaError(
                f"the server did not answer ({type(error).__name__}: {error}): check that it runs, and repeat the "
                "command, which goes on where the server is."
            ) from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise DeltaError(
                f"the server answered {response.status} for version {version} of model {model!r}: "
                f"{_error_of(content)!r}; wait until it has loaded that version, and check the name."
            )
        return _outputs_of(content)

    return call


@contextlib.contextmanager
def _deadline(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Connect, and end the connection when the time is up: a socket's timeout bounds each of its calls, not their sum.

    Raises:
      TimeoutError: the time was up before the block ended.
    """
    start, is_late = time.monotonic(), threading.Event()
    connection.connect()
    channel = connection.sock

    def end() -> None:
        is_late.set()
        with contextlib.suppress(OSError):  # it is closed already
            channel.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, start + seconds - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError(f"its answer was not complete after {seconds:g} s; `--timeout` gives it more")


def _address(server: str) -> tuple[urllib.parse.SplitResult, int | None]:
    """Split an address, and return it with its port."""
    try:
        address = urllib.parse.urlsplit(server)
        known = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
        more = address.username is not None or address.query or address.fragment
        if known and not more and re.fullmatch(r"[!-~]+", server):
            return address, address.port
    except ValueError:  # of the port, or of an IPv6 address
        pass
    given = re.sub(r"//.*@", "//...@", server)  # a password is not printed
    raise ConfigError(
        f"`--server` is {given!r}: it must be an address such as http://localhost:8501 or https://host/path, without "
        "a user name or a query."
    )


def _check_encrypted(address: urllib.parse.SplitResult, plain_hosts: Collection[str]) -> None:
    """Refuse to send secret and delta without TLS to another machine, unless its host is named."""
    host = str(address.hostname)
    if address.scheme == "https" or _is_loopback(host) or host in {name.casefold() for name in plain_hosts}:
        return
    raise ConfigError(
        f"`--server` is {address.geturl()!r}: without TLS, the secret and the tokens of the delta could be read on the "
        f"way; use https, or allow it with `--allow-http {host}`."
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _error_of(content: bytes) -> str:
    """Return what a server says is wrong: the `error` of TensorFlow Serving, or the first characters of anything."""
    try:
        return str(json.loads(content)["error"])[:200]
    except (ValueError, LookupError, TypeError, RecursionError):
        return content[:200].decode(errors="replace")


def _outputs_of(content: bytes) -> Mapping[str, Any]:
    """Parse the outputs of `apply_delta`."""
    if len(content) > _LARGEST_ANSWER:
        raise DeltaError(
            f"the server answered more than {_LARGEST_ANSWER:,} bytes, which `{APPLY_DELTA}` never does: check that "
            "the address is that of TensorFlow Serving's REST interface."
        )
    try:
        found = json.loads(content)["outputs"]
        numbers = {name: int(found[name]) for name in ("applied", "number")}
        return {**numbers, **{name: str(found[name]) for name in ("reason", MODEL_DIGEST)}}
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise DeltaError(
            f"the server did not answer as `{APPLY_DELTA}` does, but {content[:100]!r}: check that the address is that "
            "of TensorFlow Serving's REST interface."
        ) from error


def _json(value: int | str | bytes) -> Any:
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
