"""Prepares the test process: silences logs, selects tf_keras, and makes 8 logical devices for the simulated TPU.

A file marked `light` tests code without TensorFlow; if a run collects only such files, TensorFlow is never loaded.
"""

import gc
import os
import re
import sys
from pathlib import Path

import pytest

from embedding_core.rooms import is_installed
from pipelines.console.quiet import load_tensorflow, silence

TESTS = Path(__file__).parent
RAN = pytest.StashKey()  # the files whose tests ran in this process
COLLECT_ALL = 16  # files after which what became garbage after its exclusion is collected: by then it is gigabytes
_LIGHT = re.compile(r"^pytestmark = .*\blight\b", re.MULTILINE)


def pytest_configure():
    silence()
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.dont_write_bytecode = False  # otherwise each process that a test starts compiles all its imports


def is_light(path):
    return _LIGHT.search(Path(path).read_text()) is not None


def pytest_ignore_collect(collection_path, config):
    """Ignore the files that `-m light` would deselect, because importing them takes long."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and config.option.markexpr.startswith("light") and not is_light(collection_path) else None


def pytest_pycollect_makemodule(module_path):
    if not is_light(module_path):
        start_tensorflow()


def start_tensorflow():
    """Load TensorFlow and create its logical devices, which cannot change after its first operation.

    2 hosts x 4 cores is the largest topology in the tests; the default device stays the first one. An operation has one
    thread: threads that wait take time from the other processes.
    """
    if "tensorflow" in sys.modules:
        return
    load_tensorflow()
    import tensorflow as tf
    from tensorflow.python.autograph.core import config

    from embedding_core.engines import simulated_tpu

    # AutoGraph does not convert the code of Keras, which it recognizes by the module name `keras`. Without a rule for
    # `tf_keras`, which TensorFlow 2.21 has and 2.16 has not, each process spends 6 s converting the code of tf_keras.
    config.CONVERSION_RULES = (config.DoNotConvert("tf_keras"), *config.CONVERSION_RULES)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    simulated_tpu(hosts=2, cores_per_host=4)


def pytest_collection_modifyitems(config, items):
    for item in items:
        for marker in item.iter_markers("room"):
            if not is_installed(*marker.args):
                item.add_marker(pytest.mark.skip(reason=f"the optional room {marker.args[0]} is not installed"))


def file_of(item):
    return item.path.relative_to(TESTS).as_posix()


def pytest_collection_finish():
    exclude_from_collection()
    gc.set_threshold(10_000, 10, 10)  # a trace makes many objects, and few of them are garbage


def exclude_from_collection():
    """Exclude the objects that are there now from garbage collection.

    Traversing those of TFX's imports takes longer than many tests, and so does traversing what earlier files left.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before session fixtures, which also run graphs
def pytest_runtest_setup(item):
    if file_of(item) not in (ran := item.session.stash.setdefault(RAN, [])):
        ran.append(file_of(item))
        if len(ran) % COLLECT_ALL == 0:
            gc.unfreeze()
        exclude_from_collection()
    if "tensorflow" in sys.modules:
        from tensorflow import config

        # A graph that runs once or twice takes longer to optimize than to run.
        as_users = any(map(item.get_closest_marker, ("slow", "grappler")))
        config.optimizer.set_experimental_options({"disable_meta_optimizer": not as_users})


@pytest.fixture(autouse=True)
def _light_files_load_no_tensorflow(request):
    """Fail a test of a light file if it loads TensorFlow; only a run of light files alone can detect this."""
    loaded = "tensorflow" in sys.modules
    yield
    assert loaded or request.node.get_closest_marker("light") is None or "tensorflow" not in sys.modules


@pytest.fixture(scope="session")
def ranking_days():
    """Return the ranking model of the trained world, with two daily runs; tests only read it."""
    from tests.support import trained_world

    return trained_world.ranking_days()


@pytest.fixture(scope="session")
def two_tower():
    """Return the two-tower model of the trained world; tests only read it."""
    from tests.support import trained_world

    return trained_world.two_tower()
