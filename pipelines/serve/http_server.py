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
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jinja2
import tensorflow as tf
from typing_extensions import Self

from components.pusher.served import MODEL, served_versions, version_updates
from embedding_core.columns import input_name
from embedding_core.display import shown_token
from embedding_core.errors import ConfigError, EmbeddingError
from embedding_core.schema import Json
from embedding_core.storage import exists
from pipelines.config import PipelineConfig
from pipelines.console.terminal import echo
from pipelines.local.work_dir import REPORTS
from pipelines.report.run_figures import json_values
from pipelines.serve.rest_form import RequestError, Version, describe_inputs, json_of, predict, rest_values, status
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


# Makes the page of `serve`: to try a request, to see the neighbours of a token, and the rows of a table.


_ROWS, _NEIGHBOURS = 20, 10


def page_html(served: Served, name: str, fields: Mapping[str, str]) -> str:
    """Render the page.

    Args:
      served: the version that answers.
      name: name of the model.
      fields: `request`, JSON to answer; or `table`, and the `token` or number of a `row` to show the neighbours of, or
        `start`, the number of the first row to list.
    """
    shown: Json = {"problem": "", "answer": "", "tables": [], "table": None, "private": False}
    shown |= {"request": fields.get("request", ""), "rows": [], "neighbours": []}
    try:
        tables = served.tables
        shown["tables"] = tables.config.tables
        shown["request"] = shown["request"] or json.dumps(sample_request(served, tables), indent=1)
        shown |= _rows_shown(tables, fields)
    except EmbeddingError as error:
        shown["problem"] = str(error)
    try:
        shown["answer"] = _answered(served, fields["request"]) if "request" in fields else ""
    except EmbeddingError as error:
        shown["problem"] = str(error)
    signatures = {key: describe_inputs(specs) for key, specs in served.inputs.items()}
    html: str = _template().render(
        **shown,
        name=name,
        number=served.number,
        signatures=signatures,
        token=fields.get("token", "") if shown["neighbours"] and not shown["private"] else "",
    )
    return html


def _rows_shown(tables: TableRows, fields: Mapping[str, str]) -> Json:
    """Return what of a table is asked for: its neighbours, or its rows; nothing if no table is named."""
    if "table" not in fields:
        return {}
    table = tables.table(fields["table"])
    shown: Json = {"table": table, "private": tables.is_private(table)}
    if "row" in fields or fields.get("token"):
        number = fields["row"] if "row" in fields else str(tables.row_of(table, fields["token"]))
        return {**shown, "neighbours": tables.neighbours(table, number, _NEIGHBOURS)}
    return {**shown, "rows": tables.rows(table, fields.get("start", "0"), _ROWS)}


def _answered(version: Version, request: str) -> str:
    """Answer a request as text, with tokens as digests if anything of the model is private."""
    answer = predict(version, json_of(request))
    if not version.facts.get("public", {}).get("answers", False):
        answer = {key: value if key == "model_version" else _masked(value) for key, value in answer.items()}
    return json.dumps(answer, indent=1)


def _masked(value: Any) -> Any:
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    return shown_token(value.encode(), private=True) if isinstance(value, str) else value


def sample_request(version: Version, tables: TableRows) -> Json:
    """Make a request for the best candidates if the model has a signature for it, else for a row of raw columns.

    The row is the first that the report shows. Without it, public columns get the first token of their vocabulary,
    other texts are empty, and other numbers are 1.
    """
    name = next((key for key in ("top_k", "raw") if key in version.inputs), min(version.inputs))
    public = version.facts.get("public", {}).get("columns", ())
    tokens = {
        input_name(feature.column.name): tables.first_token(tables.config.table_of(feature.name))
        for feature in tables.config.features
        if feature.column is not None and feature.column.name in public and not feature.column.after_transform
    }
    specs, sample = version.inputs[name], tables.sample
    if specs.keys() <= sample.keys():
        row = {key: rest_values(json_values(value[:1]))[0] for key, value in sample.items() if key in specs}
    else:
        names = dict.fromkeys([*(key for key in tokens if key in specs), *sorted(specs)])
        row = {key: _value(specs[key], tokens.get(key)) for key in names}
    return {"signature_name": name, "instances": [row]}


def _value(spec: tf.TensorSpec, token: str | None) -> Any:
    """Make a value of a column for one row: a list if the column is multivalent."""
    value: Any = token or ""
    if spec.dtype != tf.string:
        try:
            value = spec.dtype.as_numpy_dtype(token or 1).item()
        except (ValueError, OverflowError):  # the token is of a text column, which shares the vocabulary
            value = spec.dtype.as_numpy_dtype(1).item()
    return value if spec.shape.rank == 1 else [value]


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("pipelines", "")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("serve/serve.html.jinja")
