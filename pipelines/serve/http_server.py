"""Serves the newest version of a pipeline over HTTP on loopback, and takes over newer ones."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import Self

from components.pusher.served import MODEL, served_versions, version_updates
from embedding_core.errors import ConfigError, EmbeddingError
from embedding_core.schema import Json
from embedding_core.storage import exists
from pipelines.config import PipelineConfig
from pipelines.console.terminal import echo
from pipelines.serve.page import page_html
from pipelines.serve.rest_form import RequestError, Version, json_of, metadata, predict, status
from pipelines.serve.table_rows import TableRows, tables_of_version

_HOST, _LOCAL_NAMES = "127.0.0.1", ("127.0.0.1", "localhost")
_LARGEST_REQUEST = 1 << 26
_MODEL = r"/v1/models/([^/:]+)(?:/versions/([0-9]{1,19}))?"
_PATHS = {"GET": re.compile(rf"{_MODEL}(/metadata)?"), "POST": re.compile(rf"{_MODEL}:predict")}


class Served:
    """A loaded version and its tables, which are read when they are first asked for."""

    def __init__(self, config: PipelineConfig, number: int) -> None:
        """Load the version."""
        self._config = config
        self.model = Version(config.push_destination, number)
        updates = version_updates().last(config.push_destination, number)
        if updates:
            echo(f"version {number} answers without its {updates} updates: send them as to any server.", err=True)

    @property
    def number(self) -> int:
        """The number of the version."""
        return self.model.number

    @functools.cached_property
    def tables(self) -> TableRows:
        """The tables of its training."""
        return tables_of_version(self._config, self.number, self.model.facts)


class Newest:
    """The newest version in a folder, which a thread looks for.

    Attributes:
      version: the version that answers.
    """

    def __init__(self, config: PipelineConfig, seconds: float = 1.0) -> None:
        """Load the newest version.

        Args:
          config: the pipeline.
          seconds: time between two looks for a newer version.

        Raises:
          ConfigError: there is none.
        """
        self._config, self._seconds, self._stop = config, seconds, threading.Event()
        number = self._number()
        if number is None:
            raise ConfigError(f"{config.push_destination!r} has no version: push one with `tfx-embeddings run`.")
        self.version, self._refused = Served(config, number), 0
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _number(self) -> int | None:
        base = self._config.push_destination
        versions = reversed(served_versions(base))
        return next((number for number in versions if exists(os.path.join(base, str(number), MODEL))), None)

    def _follow(self) -> None:
        while not self._stop.wait(self._seconds):
            self.look()

    def look(self) -> None:
        """Load the newest version if another one answers; requests use the previous one until it is loaded."""
        number = None
        try:
            number = self._number()
            if number is not None and number not in (self.version.number, self._refused):
                self.version = Served(self._config, number)
                echo(f"version {number}")
        except Exception as error:  # such as a version that was removed while it was loaded
            self._refused = number or 0
            echo(f"version {number} cannot be loaded, {self.version.number} still answers: {error}", err=True)


class LookServer(ThreadingHTTPServer):
    """An HTTP server on loopback for the newest version of a pipeline.

    Attributes:
      config: the pipeline.
      newest: holds the version that answers.
    """

    def __init__(self, config: PipelineConfig, port: int) -> None:
        """Listen, and load the newest version.

        Raises:
          ConfigError: the port is in use, or there is no version.
        """
        self.config = config
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise ConfigError(f"`--port` is {port!r}: {error.strerror}; give another one, or 0 for any.") from error
        try:
            self.newest = Newest(config)
        except BaseException:
            self.server_close()
            raise

    def __enter__(self) -> Self:
        self.newest.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.server_close()
        self.newest.__exit__(*error)

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
        served, name = self.newest.version, self.config.name  # the whole answer is of one version
        if path == "/":
            return page_html(served, name, _fields(query), _fields(body.decode()))
        if (method, path) == ("GET", "/v1/models"):
            return {"models": [name]}
        matched = _PATHS[method].fullmatch(urllib.parse.unquote(path))
        if matched is None:
            raise RequestError(f"{method} {path!r} is not a request that this server answers.", 404)
        model, number = matched[1], matched[2] or str(served.number)
        if (model, int(number)) != (name, served.number):
            raise RequestError(f"version {number} of {model!r} is not served: {served.number} of {name!r} is.", 404)
        if method == "POST":
            return predict(served.model, json_of(body))
        return metadata(served.model, name) if matched[3] else status(served.model, name)


def _fields(text: str) -> dict[str, str]:
    """Read the fields of a form; of a repeated one, the last."""
    return dict(urllib.parse.parse_qsl(text, keep_blank_values=True))


class _Handler(BaseHTTPRequestHandler):
    """Reads requests and writes answers; every error is JSON."""

    server: LookServer
    timeout = 60.0

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > _LARGEST_REQUEST:
            self.send_error(411, f"Content-Length is {length!r}: it must be given, and at most {_LARGEST_REQUEST}.")
            return
        self._answer(self.rfile.read(int(length)))

    def _answer(self, body: bytes) -> None:
        try:
            self._require_local_name()
            answer = self.server.answer(self.command, self.path, body)
        except RequestError as error:
            self.send_error(error.status, str(error))
        except (EmbeddingError, UnicodeDecodeError) as error:
            self.send_error(400, str(error))
        except Exception as error:
            self.send_error(500, f"{type(error).__name__}: {error}")
        else:
            self._send(200, answer)

    def _require_local_name(self) -> None:
        """Refuse other names of this machine: a web page could have given its own name this address."""
        host = self.headers.get("Host", _HOST)
        if host.partition(":")[0] not in _LOCAL_NAMES:
            raise RequestError(f"Host is {host!r}: it must be one of {_LOCAL_NAMES}.", 403)

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
