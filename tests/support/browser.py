"""Opens pages in headless Chromium over its debugging pipe, so that a test sees what a reader would.

The environment variable PICTURES names a folder in which the pictures are kept.
"""

import base64
import contextlib
import fcntl
import importlib.util
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

AXE = importlib.util.find_spec("axe_core_python")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_BROWSER = "no Chromium is installed (Debian: apt-get install chromium)"
_OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
_SECONDS = 300  # for an answer: the machine may be busy


class Browser:
    """A tab of Chromium.

    Attributes:
      problems: the errors and warnings that pages wrote to the console, and their exceptions.
    """

    def __init__(self, read, write):
        self._read, self._write, self._buffer, self._sent, self._session = read, write, b"", 0, None
        self.problems = []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Send a command and return its result."""
        self._sent += 1
        session = {"sessionId": self._session} if self._session else {}
        os.write(
            self._write, json.dumps({"id": self._sent, "method": method, "params": params, **session}).encode() + b"\0"
        )
        return self._wait(lambda message: message.get("id") == self._sent)["result"]

    def open(self, path, *, width, dark=False, media="screen"):
        """Show a file at a width of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        self._wait(lambda message: message.get("method") == "Page.loadEventFired")

    def value(self, expression):
        """Return the value of a JavaScript expression, after its promise if it is one."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def keep_picture(self, name):
        """Save the whole page as a PNG file in the folder of PICTURES."""
        if folder := os.environ.get("PICTURES"):
            shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
            Path(folder).mkdir(parents=True, exist_ok=True)
            Path(folder, f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def barriers(self):
        """Open all details, and return what axe-core finds: id and help of the rule, and markup of the first place."""
        if AXE is None:
            pytest.skip("axe-core-python is not installed: run `make venv`")
        self.value("document.querySelectorAll('details').forEach(part => part.open = true)")
        self.value(Path(AXE.origin).with_name("axe.min.js").read_text(encoding="utf-8") + ";0")
        found = self.value("axe.run().then(result => result.violations)")
        return [(rule["id"], rule["help"], rule["nodes"][0]["html"][:200]) for rule in found]

    def save_pdf(self, path):
        """Print the page."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))

    def _wait(self, is_meant):
        end = time.monotonic() + _SECONDS
        while True:
            message, found, rest = self._buffer.partition(b"\0")
            if not found:
                assert select.select([self._read], [], [], end - time.monotonic())[0], "Chromium does not answer"
                part = os.read(self._read, 1 << 16)
                assert part, "Chromium ended"
                self._buffer += part
                continue
            self._buffer = rest
            message = json.loads(message)
            method, params = message.get("method"), message.get("params", {})
            if method == "Runtime.exceptionThrown" or (
                method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")
            ):
                self.problems.append(params)
            if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                self.problems.append(params)
            assert "error" not in message, message["error"]
            if is_meant(message):
                return message


@contextlib.contextmanager
def browser(profile):
    """Start Chromium with a profile in this folder; it ends with the block."""
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]  # 3 and 4 may be taken

    connect = f'exec "$@" 3<&{high[0]} 4>&{high[1]}'
    process = subprocess.Popen(
        ["bash", "-c", connect, "bash", CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for end in (theirs_in, theirs_out, *high):
        os.close(end)
    try:
        yield Browser(ours_in, ours_out)
    finally:
        process.kill()
        process.wait()
        os.close(ours_in)
        os.close(ours_out)
