"""Prepares the process of the tests: quiet, tf_keras, and 8 logical devices for the simulated TPU.

A file marked `light` tests code without TensorFlow; if a run collects only such files, TensorFlow is never loaded.
"""

import functools
import gc
import os
import re
import sys
from pathlib import Path

import pytest

from pipelines.console.quiet import load_tensorflow, silence

TESTS = Path(__file__).parent
# Whole files go to one process, which trains and exports once for all of their tests. Those of more than 20 s start
# first, longest first, so that no process is left with a long one at the end.
LONGEST_FIRST = (
    "pipelines/test_end_to_end.py",
    "embedding_core/training/test_training.py",
    "embedding_core/test_contract.py",
    "components/vocabulary_gen/test_vocabulary_gen.py",
    "embedding_core/training/test_strategies.py",
    "components/test_beam_runners.py",
    "components/pusher/test_pusher.py",
    "embedding_core/training/test_dense_start.py",
    "faults/test_saving.py",
    "embedding_core/training/test_host_files.py",
    "pipelines/test_preprocessing.py",
    "embedding_core/layer/test_engine_mode.py",
    "faults/test_push_fuzzed.py",
    "pipelines/checks/test_pipeline_preflight.py",
    "embedding_core/preflight/test_preflight.py",
    "embedding_core/serving/test_export.py",
    "embedding_core/layer/test_on_tpu.py",
    "components/vocabulary_gen/test_vocabulary_gen_base.py",
    "embedding_core/layer/test_documented_examples.py",
    "components/trainer/test_trainer.py",
)
# Files that run with Grappler under `--lean` too: a whole pipeline as users run it, and memory.
WITH_GRAPPLER = ("pipelines/test_end_to_end.py", "embedding_core/engines/test_step_memory.py")
_LIGHT = re.compile(r"^pytestmark = .*\blight\b", re.MULTILINE)


def pytest_addoption(parser):
    parser.addoption(
        "--lean",
        action="store_true",
        help="run graphs as they were traced, without Grappler, and each operation in one thread: a graph that runs "
        "once or twice takes longer to optimize than to run, and threads that wait take time from other processes",
    )

    parser.addoption(
        "--share",
        metavar="FOLDER",
        help="run each file only if no other process with this option and this folder runs it",
    )


def pytest_configure():
    silence()
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.dont_write_bytecode = False  # else each process that a test starts compiles every module that it imports


def is_light(path):
    return _LIGHT.search(Path(path).read_text()) is not None


def pytest_ignore_collect(collection_path, config):
    """Leave out the files that `-m light` would deselect: importing them is what takes long."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and config.option.markexpr.startswith("light") and not is_light(collection_path) else None


def pytest_pycollect_makemodule(module_path, parent):
    if not is_light(module_path):
        start_tensorflow(lean=parent.config.option.lean)


def start_tensorflow(*, lean):
    """Load TensorFlow and ask for its logical devices, which it fixes at its first operation.

    2 hosts x 4 cores is the largest topology in the tests; the default device stays the first one.
    """
    if "tensorflow" in sys.modules:
        return
    load_tensorflow()
    import tensorflow as tf
    from tensorflow.python.autograph.core import config

    from embedding_core.engines import simulated_tpu

    # AutoGraph leaves Keras' own code as it is, but knows it by the name `keras` only: converting that of `tf_keras`
    # takes each process 6 s.
    config.CONVERSION_RULES = (config.DoNotConvert("tf_keras"), *config.CONVERSION_RULES)
    if lean:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    simulated_tpu(hosts=2, cores_per_host=4)


def pytest_collection_modifyitems(config, items):
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(file_of(item), len(places)))
    if config.option.share and not all(map(needs_no_tfx, items)):
        files = {file_of(item): place for place, item in enumerate(items)}
        items.sort(key=lambda item: (needs_no_tfx(item), -files[file_of(item)] if needs_no_tfx(item) else 0))


def file_of(item):
    return item.path.relative_to(TESTS).as_posix()


def needs_no_tfx(item):
    """Tell whether both processes of `make test` have the file; that with TFX runs such files last, shortest first."""
    return file_of(item).startswith(("embedding_core/", "faults/"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Run the tests of the files that this process claims, under `--share`."""
    folder = session.config.option.share
    if folder is None or session.config.option.collectonly or session.testsfailed:  # pytest reports failed collections
        return None
    items = (item for item in session.items if is_claimed(folder, file_of(item)))
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail or session.shouldstop:
            raise session.Interrupted(session.shouldfail or session.shouldstop)
        item = following
    return True


@functools.cache
def is_claimed(folder, file):
    """Claim a file for this process; tell whether it has it."""
    try:
        (Path(folder) / file.replace("/", "-")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def pytest_collection_finish():
    """Spare the garbage collector what the imports made: walking the objects of TFX costs more than many a test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)  # a trace makes many objects, and few of them are garbage


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the session, which run graphs too
def pytest_runtest_setup(item):
    if "tensorflow" in sys.modules and item.config.option.lean:
        from tensorflow import config

        config.optimizer.set_experimental_options({"disable_meta_optimizer": file_of(item) not in WITH_GRAPPLER})


@pytest.fixture(autouse=True)
def _light_files_load_no_tensorflow(request):
    """Fails the test of a light file that loads TensorFlow, in a run of light files."""
    loaded = "tensorflow" in sys.modules
    yield
    assert loaded or request.node.get_closest_marker("light") is None or "tensorflow" not in sys.modules
