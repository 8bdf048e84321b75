"""Serves the newest version of a pipeline over HTTP on loopback, and takes over newer ones."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typing_extensions import Self

from components.pusher.served import MODEL, served_versions, version_updates
from embedding_core.errors import ConfigError, EmbeddingError
from embedding_core.schema import Json
from embedding_core.storage import exists
from pipelines.config import PipelineConfig
from pipelines.console.terminal import echo
from pipelines.local.work_dir import REPORTS
from pipelines.serve.page import page_html
from pipelines.serve.rest_form import RequestError, Version, json_of, predict, status
from pipelines.serve.table_rows import TableRows, tables_of_version

_HOST, _LOCAL_NAMES = "127.0.0.1", ("127.0.0.1", "localhost")
_LARGEST_REQUEST = 1 << 26  # bytes
_SECONDS = 1.0  # between two looks for a newer version
_MODEL = r"/v1/models/([^/:]+)(?:/versions/([0-9]{1,19}))?"
_PATHS = {"GET": re.compile(_MODEL), "POST": re.compile(rf"{_MODEL}:predict")}


class Served(Version):
    """A loaded version and its tables, which are read when they are first asked for."""

    def __init__(self, config: PipelineConfig, number: int) -> None:
        """Load the version.

        Raises:
          ConfigError: it cannot be loaded.
        """
        super().__init__(config.push_destination, number)
        self._config = config
        updates = version_updates().last(config.push_destination, number)
        if updates:
            echo(f"version {number} answers without its {updates} updates: send them as to any server.", err=True)

    @functools.cached_property
    def tables(self) -> TableRows:
        """The tables of its training."""
        return tables_of_version(self._config, self.number, self.facts)


class LookServer(ThreadingHTTPServer):
    """An HTTP server on loopback for the newest version of a pipeline. While it is entered, it looks for a newer one.

    Attributes:
      config: the pipeline.
      version: the version that answers.
    """

    def __init__(self, config: PipelineConfig, port: int) -> None:
        """Listen, and load the newest version.

        Raises:
          ConfigError: the port is in use, there is no version, or it cannot be loaded.
        """
        self.config, self._stop = config, threading.Event()
        self._reported: int | None = 0
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise ConfigError(f"`--port` is {port!r}: {error.strerror}; give another one, or 0 for any.") from error
        try:
            number = self._newest()
            if number is None:
                raise ConfigError(
                    f"{config.push_destination!r} has no version: {_last_refusal(config)}push one with "
                    "`tfx-embeddings run`."
                )
            self.version = Served(config, number)
        except BaseException:
            self.server_close()
            raise
        self._follower = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server_close()
        self._stop.set()
        self._follower.join()

    def _newest(self) -> int | None:
        base = self.config.push_destination
        versions = reversed(served_versions(base))
        return next((number for number in versions if exists(os.path.join(base, str(number), MODEL))), None)

    def _follow(self) -> None:
        while not self._stop.wait(_SECONDS):
            self.look()

    def look(self) -> None:
        """Load the newest version if another one answers; requests use the previous one until it is loaded.

        A version that cannot be loaded may still be copied, so the next look tries it again; it is reported once.
        """
        number = None
        try:
            number = self._newest()
            if number is not None and number != self.version.number:
                self.version = Served(self.config, number)
                echo(f"version {number}")
        except Exception as error:  # whatever it is, the previous version answers
            if number != self._reported:
                echo(f"version {number} is not loaded, {self.version.number} still answers: {error}", err=True)
            self._reported = number

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{_HOST}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that went away."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def answer(self, method: str, target: str, body: bytes) -> Json | str:
        """Answer a request with JSON, or with the HTML of the page.

        Raises:
          RequestError: the request breaks a rule.
        """
        path, _, query = target.partition("?")
        served, name = self.version, self.config.name  # the whole answer is of one version
        if path == "/":
            return page_html(served, name, dict(urllib.parse.parse_qsl(body.decode() or query, keep_blank_values=True)))
        if (method, path) == ("GET", "/v1/models"):
            return {"models": [name]}
        matched = _PATHS[method].fullmatch(urllib.parse.unquote(path))
        if matched is None:
            raise RequestError(f"{method} {path!r} is not a request that this server answers.", 404)
        model, number = matched[1], matched[2] or str(served.number)
        if (model, int(number)) != (name, served.number):
            raise RequestError(f"version {number} of {model!r} is not served: {served.number} of {name!r} is.", 404)
        return predict(served, json_of(body)) if method == "POST" else status(served, name)


def _last_refusal(config: PipelineConfig) -> str:
    """Say where the reason is if the last run that finished was refused; else ""."""
    reports = Path(config.work_dir, REPORTS)
    last = max(reports.iterdir(), key=os.path.getmtime, default=reports) if reports.is_dir() else reports
    return f"the last run was refused, and {str(last)!r} says why; " if last.name.startswith("refused-") else ""


class _Handler(BaseHTTPRequestHandler):
    """Reads requests and writes answers; every error is JSON."""

    server: LookServer
    timeout = 60.0  # seconds, for the whole request and for sending the whole answer

    def handle(self) -> None:
        """Answer a request, of which nothing is read after the time: `timeout` alone bounds each of its parts."""
        late = threading.Timer(self.timeout, self._stop_reading)
        late.daemon = True
        late.start()
        try:
            super().handle()
        finally:
            late.cancel()

    def _stop_reading(self) -> None:
        with contextlib.suppress(OSError):  # the client went away
            self.connection.shutdown(socket.SHUT_RD)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        try:
            self._require_this_machine()
            answer = self.server.answer(self.command, self.path, self._body() if self.command == "POST" else b"")
        except RequestError as error:
            self.send_error(error.status, str(error))
        except (EmbeddingError, UnicodeDecodeError) as error:
            self.send_error(400, str(error))
        except (ConnectionError, TimeoutError):  # the client went away, or was too slow
            raise
        except Exception as error:
            self.send_error(500, f"{type(error).__name__}: {error}")
        else:
            self._send(200, answer)

    def _require_this_machine(self) -> None:
        """Refuse pages of others: they could send requests from a browser here, or give their name this address."""
        host, origin = self.headers.get("Host", _HOST), self.headers.get("Origin")
        if host.partition(":")[0] not in _LOCAL_NAMES or origin not in (None, f"http://{host}"):
            names = " or ".join(_LOCAL_NAMES)
            raise RequestError(f"Host is {host!r} and Origin {origin!r}: ask from this machine, as {names}.", 403)

    def _body(self) -> bytes:
        given = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,19}", given):
            raise RequestError(f"Content-Length is {given!r}: it must be a number of bytes.", 411)
        if int(given) > _LARGEST_REQUEST:
            raise RequestError(f"Content-Length is {given}: it must be at most {_LARGEST_REQUEST:,}.", 413)
        body = self.rfile.read(int(given))
        if len(body) < int(given):
            raise RequestError(f"the request ended after {len(body):,} of {int(given):,} bytes.", 408)
        return body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as JSON, those of the base class too."""
        self._send(int(code), {"error": message or self.responses.get(code, ("error",))[0]})

    def _send(self, code: int, answer: Json | str) -> None:
        content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(code)
        kind = "text/html; charset=utf-8" if isinstance(answer, str) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing: requests may hold private tokens."""
