"""Run TensorFlow's TPU embedding tests, from a checkout, against the simulated TPU.

    python tests/tf_tests/run.py <checkout of TensorFlow> [--topology 2x2] [--only substring]

Prints one line per test that does not pass, and as its last line "passed P of N".
"""

import argparse
import gc
import importlib
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
TESTS = "tensorflow/python/tpu/tests"


def load(checkout, topology, pattern):
    """The suites of the test modules, with the engine of that topology behind them."""
    import harness
    import tensorflow as tf
    import tensorflow.python.tpu as package
    from absl import flags
    from tensorflow.python.distribute.cluster_resolver import tpu_cluster_resolver

    from embedding_core.engines import simulated_tpu

    simulated_tpu(hosts=2, cores_per_host=4)  # as many logical devices as any topology here needs
    package.__path__.append(str(checkout / "tensorflow/python/tpu"))
    tf.data.experimental.enable_debug_mode()  # no background threads, which a garbage collection waits for
    base_test = importlib.import_module("tensorflow.python.tpu.tests.tpu_embedding_base_test")
    flags.FLAGS(sys.argv[:1])
    flags.FLAGS.model_dir = tempfile.mkdtemp()
    harness.install(base_test, tpu_cluster_resolver, *topology)
    tf.get_logger().setLevel("ERROR")
    for path in sorted((checkout / TESTS).glob(pattern)):
        module = importlib.import_module(f"tensorflow.python.tpu.tests.{path.stem}")
        yield path.stem, unittest.defaultTestLoader.loadTestsFromModule(module)


def flatten(suite):
    """The single tests of a suite."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def skips(test):
    """Whether a test is none: tf.test.TestCase adds `test_session` to every class."""
    return test.id().endswith(".test_session")


def outcome(test):
    """ "pass", "skip", or the last line of the error."""
    from absl import flags

    flags.FLAGS.model_dir = tempfile.mkdtemp()
    result = unittest.TestResult()
    stream, sys.stderr = sys.stderr, io.StringIO()
    try:
        test.run(result)
    finally:
        sys.stderr = stream
    gc.collect()
    problems = result.errors + result.failures
    if problems:
        return problems[0][1]
    return "skip" if result.skipped else "pass"


def main():
    """Run and report."""
    gc.disable()  # a collection while a function is traced can wait for ever for a dataset's thread
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--topology", default="2x2", help="hosts x cores per host")
    parser.add_argument("--only", default="", help="run the tests whose id holds this")
    parser.add_argument("--verbose", action="store_true", help="print whole tracebacks")
    options = parser.parse_args()
    topology = [int(number) for number in options.topology.split("x")]
    passed = total = 0
    for module, suite in load(options.checkout, topology, "tpu_embedding_v2_*_test.py"):
        for test in flatten(suite):
            if skips(test) or options.only not in f"{module}.{test.id()}":
                continue
            if options.verbose:
                print(f"running {module} {test.id().rpartition(chr(46))[2]}", flush=True)
            found = outcome(test)
            total += 1
            passed += found == "pass"
            if found != "pass":
                text = found if options.verbose else found.strip().splitlines()[-1][:300]
                print(f"{module}.{test.id().split('.', 1)[-1]}: {text}", flush=True)
    print(f"passed {passed} of {total}", flush=True)


if __name__ == "__main__":
    main()
