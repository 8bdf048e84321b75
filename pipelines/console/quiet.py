"""Silences third-party warnings and TensorFlow's start-up lines, but never errors; imports large packages faster.

An entry point calls `silence` first, before TensorFlow is imported: TensorFlow reads the environment while it loads.
Child processes inherit the environment.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator

import absl.logging

_OWN_PACKAGES = ("embedding_core", "components", "pipelines")

# TensorFlow's C++ levels: 0 info, 1 warning, 2 error, 3 fatal; a level hides all below it.
_ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",  # all models here are tf_keras models
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "GRPC_VERBOSITY": "ERROR",
    "GLOG_minloglevel": "2",
    "PYTHONWARNINGS": "ignore",
}
_CHATTY = ("apache_beam", "google", "h5py", "root", "tensorflow", "tfx", "tfx_bsl", "urllib3")
_START_UP = re.compile(
    rb"Unable to register cu\w+ factory|computation placer already registered|oneDNN custom operations are on|"
    rb"Could not find cuda drivers|All log messages before absl::InitializeLog|"  # TensorFlow 2.21, as the next
    rb"failed call to cuInit: .* UNKNOWN ERROR \(303\)"  # there is no driver
)


def silence() -> None:
    """Silence warnings of other packages and TensorFlow's start-up lines; keep environment variables that are set."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    for package in _OWN_PACKAGES:
        warnings.filterwarnings("default", module=rf"{package}(\.|$)")
    absl.logging.set_verbosity(absl.logging.ERROR)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in _OWN_PACKAGES:  # otherwise they would inherit the level of "root"
        logging.getLogger(name).setLevel(logging.WARNING)


def load_tensorflow() -> None:
    """Import TensorFlow without the error lines that it prints because it was built for CUDA.

    A log level that hides them would hide every later error too. Therefore stderr is buffered while TensorFlow loads,
    and all other lines are written afterwards.
    """
    if "tensorflow" in sys.modules:
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            tensorflow = importlib.import_module("tensorflow")
            tensorflow.config.list_physical_devices("GPU")  # otherwise TensorFlow 2.21 says later that there is none
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            kept = [line for line in held if not _START_UP.search(line)]
            sys.stderr.write(b"".join(kept).decode(errors="replace"))


# Imports large packages without repeated garbage collections over their objects.


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector; when it resumes, it ignores all objects that exist by then.

    Modules live as long as the process. Without the pause, the collector takes a third of the time in which TensorFlow
    and TFX load, and each later full collection walks their objects again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
