"""Serves a SavedModel over TensorFlow Serving's REST predict interface, from threads; for tests.

It answers `POST /v1/models/m/versions/<number>:predict` with the column format: `inputs` and `outputs` by name, and
bytes as `{"b64": ...}`. TensorFlow's loader loads the version; a session answers, as in TensorFlow Serving.
"""

import base64
import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from embedding_core.deltas.served_state import LoadedVersion

_PATH = re.compile(r"/v1/models/[mx]/versions/(\d+):predict\Z")


def _array(value):
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    if isinstance(value, list):
        found = [_array(item) for item in value]
        return np.array(found, object if found and isinstance(found[0], bytes | str) else None)
    return value.encode() if isinstance(value, str) else value


def _json(value):
    if isinstance(value, bytes):
        return value.decode()
    return [_json(item) for item in value] if isinstance(value, list) else value


class Server:
    """Serves version folders of one model, "m" or "x".

    Attributes:
      versions: loaded versions by number.
      requests: number of requests so far.
      drop: called with "before" and "after" each request is computed; if it returns true, the connection is closed.
    """

    def __init__(self):
        self.versions, self.requests, self.drop = {}, 0, lambda when: False
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = server.answer(self.path, body)
                if status is None:
                    self.close_connection = True
                    return
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def load(self, folder):
        """Load a version, as after a restart."""
        number = int(folder.name)
        if number in self.versions:
            self.versions[number].close()
        self.versions[number] = LoadedVersion(folder)

    def answer(self, path, body):
        self.requests += 1
        found = _PATH.fullmatch(path)
        if found is None or int(found[1]) not in self.versions:
            return 404, {"error": f"Servable not found for request: {path}"}
        if self.drop("before"):
            return None, None
        inputs = {name: _array(value) for name, value in body["inputs"].items()}
        try:
            outputs = self.versions[int(found[1])].call(body["signature_name"], **inputs)
        except Exception as error:
            return 400, {"error": str(error)[:500]}
        if self.drop("after"):
            return None, None
        values = {name: _json(value.tolist() if hasattr(value, "tolist") else value) for name, value in outputs.items()}
        return 200, {"outputs": values}

    def close(self):
        self._http.shutdown()
        self._http.server_close()
        for version in self.versions.values():
            version.close()


@contextlib.contextmanager
def serving(*folders):
    """Yield a server that has loaded these versions."""
    server = Server()
    try:
        for folder in folders:
            server.load(folder)
        yield server
    finally:
        server.close()
