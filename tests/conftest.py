"""Prepares the test process: silences logs, selects tf_keras, and makes 8 logical devices for the simulated TPU.

A file marked `light` tests code without TensorFlow; if a run collects only such files, TensorFlow is never loaded.
"""

import functools
import gc
import os
import re
import sys
from pathlib import Path

import pytest

from embedding_core.rooms import is_installed
from pipelines.console.quiet import load_tensorflow, silence

TESTS = Path(__file__).parent
# All tests of a file run in one process, which trains and exports once for them. Files that take over 20 s start first,
# the longest first, so that no process still runs a long file when the others have finished.
LONGEST_FIRST = (
    "pipelines/test_trained_world.py",
    "pipelines/test_end_to_end.py",
    "embedding_core/training/test_strategies.py",
    "pipelines/test_follow.py",
    "deltas/test_pushed_deltas.py",
    "embedding_core/training/test_training.py",
    "deltas/test_followed_deltas.py",
    "deltas/test_campaigns.py",
    "components/evaluator/test_evaluator.py",
    "embedding_core/training/test_host_files.py",
    "pipelines/test_moving_from_tfrs.py",
    "embedding_core/sparse_cores/test_training_limits.py",
    "components/test_beam_runners.py",
    "components/pusher/test_pusher.py",
    "embedding_core/training/test_kept_rows.py",
    "embedding_core/training/test_validation_split.py",
    "components/shadow/test_shadow.py",
    "faults/test_saving.py",
    "embedding_core/deltas/test_deltas.py",
    "pipelines/shadow/test_shadow_command.py",
    "components/deltas/test_delta_push.py",
    "components/trainer/test_own_run.py",
    "embedding_core/test_contract.py",
    "components/vocabulary_gen/test_vocabulary_gen.py",
    "embedding_core/training/test_dense_start.py",
    "pipelines/health/test_measured_tables.py",
    "pipelines/test_preprocessing.py",
    "faults/test_push_fuzzed.py",
    "pipelines/checks/test_pipeline_preflight.py",
    "embedding_core/preflight/test_preflight.py",
    "embedding_core/serving/test_export.py",
    "embedding_core/layer/test_on_tpu.py",
    "components/vocabulary_gen/test_vocabulary_gen_base.py",
    "components/trainer/test_trainer.py",
)
WITH_GRAPPLER = "pipelines/test_end_to_end.py"  # even under `--lean`: a whole pipeline as users run it
RAN = pytest.StashKey()  # the files whose tests ran in this process
COLLECT_ALL = 16  # files after which what became garbage after its exclusion is collected: by then it is gigabytes
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
        sys.dont_write_bytecode = False  # otherwise each process that a test starts compiles all its imports


def is_light(path):
    return _LIGHT.search(Path(path).read_text()) is not None


def pytest_ignore_collect(collection_path, config):
    """Ignore the files that `-m light` would deselect, because importing them takes long."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and config.option.markexpr.startswith("light") and not is_light(collection_path) else None


def pytest_pycollect_makemodule(module_path, parent):
    if not is_light(module_path):
        start_tensorflow(lean=parent.config.option.lean)


def start_tensorflow(*, lean):
    """Load TensorFlow and create its logical devices, which cannot change after its first operation.

    2 hosts x 4 cores is the largest topology in the tests; the default device stays the first one.
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
    if lean:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    simulated_tpu(hosts=2, cores_per_host=4)


def pytest_collection_modifyitems(config, items):
    for item in items:
        for marker in item.iter_markers("room"):
            if not is_installed(*marker.args):
                item.add_marker(pytest.mark.skip(reason=f"the optional room {marker.args[0]} is not installed"))
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(file_of(item), len(places)))
    if config.option.share and not all(map(runs_in_both, items)):
        files = {file_of(item): place for place, item in enumerate(items)}
        items.sort(key=lambda item: (runs_in_both(item), -files[file_of(item)] if runs_in_both(item) else 0))


def file_of(item):
    return item.path.relative_to(TESTS).as_posix()


def runs_in_both(item):
    """Return whether both processes of `make test` collect the file; the TFX process runs it late, shortest first."""
    return file_of(item).startswith(("embedding_core/", "faults/", "deltas/"))  # the folders of `make test-core`


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Under `--share`, run only the tests of the files that this process claims."""
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
    """Claim a file for this process; return whether no other process claimed it before."""
    try:
        (Path(folder) / file.replace("/", "-")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


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
    if "tensorflow" in sys.modules and item.config.option.lean:
        from tensorflow import config

        config.optimizer.set_experimental_options({"disable_meta_optimizer": file_of(item) != WITH_GRAPPLER})


@pytest.fixture(autouse=True)
def _light_files_load_no_tensorflow(request):
    """Fail a test of a light file if it loads TensorFlow; only a run of light files alone can detect this."""
    loaded = "tensorflow" in sys.modules
    yield
    assert loaded or request.node.get_closest_marker("light") is None or "tensorflow" not in sys.modules


@pytest.fixture(scope="session")
def ranking_days():
    """Return the ranking model of the trained world, with two daily runs; tests only read it."""
    from support import trained_world

    return trained_world.ranking_days()


@pytest.fixture(scope="session")
def two_tower():
    """Return the two-tower model of the trained world; tests only read it."""
    from support import trained_world

    return trained_world.two_tower()
