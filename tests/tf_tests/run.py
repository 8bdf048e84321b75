"""Runs TensorFlow's TPU embedding tests, from a checkout, against the simulated TPU.

    python tests/tf_tests/run.py <checkout of TensorFlow> [--topology 2x2] [--sparse-cores] [--only text] [--verbose]

Prints one line per test that does not pass, and then for each group of test files "<group>: passed P of N". The tests
of SparseCores are counted by function: one with parameters passes if it passes with all of them.
"""

import argparse
import ast
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
FOLDER = "tensorflow/python/tpu"
GROUPS = {
    "mid level (v2)": "tests/tpu_embedding_v2_*_test.py",
    "tensor core (v1)": "tests/tpu_embedding_v1_*_test.py",
    "serving": "tpu_embedding_for_serving_test.py",
}
SPARSE_CORES = {
    "SparseCores (v3)": "tpu_embedding_v3_test.py",
    "SparseCores (v3), additional": "tpu_embedding_v3_additional_test.py",
    "SparseCores (v3), checkpoint": "tpu_embedding_v3_checkpoint_test.py",
    "SparseCores (v3), checkpoint adapter": "tpu_embedding_v3_checkpoint_adapter_test.py",
    "SparseCores (v3), utilities": "tpu_embedding_v3_utils_test.py",
}


def prepare(checkout, topology, *, sparse_cores):
    """Make the test modules use the simulated TPU with this topology."""
    import tensorflow as tf
    import tensorflow.python.tpu as package
    from absl import flags
    from tensorflow.python.distribute.cluster_resolver import tpu_cluster_resolver

    from embedding_core.engines import simulated_tpu

    simulated_tpu(hosts=2, cores_per_host=4)  # as many logical devices as any topology here needs
    package.__path__.append(str(checkout / FOLDER))
    tf.data.experimental.enable_debug_mode()  # without background threads: garbage collection would wait for them
    tf.get_logger().setLevel("ERROR")
    if sparse_cores:
        from sparse_cores import sparse_core_harness

        sparse_core_harness.install(*topology)
        flags.DEFINE_string("model_dir", None, "not used by these tests")
        flags.FLAGS(sys.argv[:1])
        return
    import harness

    base_test = importlib.import_module("tensorflow.python.tpu.tests.tpu_embedding_base_test")
    flags.FLAGS(sys.argv[:1])
    harness.install(base_test, tpu_cluster_resolver, *topology)


def tests_of(path, checkout):
    """Yield the tests of one file, without the `test_session` of tf.test.TestCase, which is not a test."""
    name = ".".join(path.relative_to(checkout).with_suffix("").parts)
    suites = [unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))]
    while suites:
        item = suites.pop(0)
        if isinstance(item, unittest.TestSuite):
            suites[:0] = list(item)
        elif not item.id().endswith(".test_session"):
            yield item


def outcome(test):
    """Run a test; return whether it passed, and if not, its traceback or the reason why it was skipped."""
    from absl import flags

    flags.FLAGS.model_dir = tempfile.mkdtemp()
    result = unittest.TestResult()
    stream, sys.stderr = sys.stderr, io.StringIO()
    try:
        test.run(result)
    finally:
        sys.stderr = stream
    gc.collect()
    problems = [text for _, text in result.errors + result.failures + result.skipped]
    return (not problems, problems[0] if problems else "")


def function_of(test, path):
    """Return the name of the function in a file that a test, possibly one with parameters, is made from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return max((name for name in names if test._testMethodName.startswith(name)), key=len)


def main():
    """Run the tests and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--topology", default="2x2", help="hosts x cores per host")
    parser.add_argument("--sparse-cores", action="store_true", help="run the tests of SparseCores; a core is a chip")
    parser.add_argument("--only", default="", help="run the tests whose id holds this")
    parser.add_argument("--verbose", action="store_true", help="name every test, and print whole tracebacks")
    options = parser.parse_args()
    gc.disable()  # while a function is traced, garbage collection can wait forever for a dataset's thread
    topology = [int(number) for number in options.topology.split("x")]
    prepare(options.checkout, topology, sparse_cores=options.sparse_cores)
    for group, pattern in (SPARSE_CORES if options.sparse_cores else GROUPS).items():
        results = {}
        for path in sorted((options.checkout / FOLDER).glob(pattern)):
            for test in tests_of(path, options.checkout):
                name = f"{path.stem}::{test.id().rpartition('.')[2]}"
                if options.only not in name:
                    continue
                if options.verbose:
                    print(f"running {name}", flush=True)
                good, text = outcome(test)
                counted = function_of(test, path) if options.sparse_cores else name
                results[counted] = results.get(counted, True) and good
                if not good:
                    print(f"{name}: {text if options.verbose else text.strip().splitlines()[-1][:200]}", flush=True)
        print(f"{group}: passed {sum(results.values())} of {len(results)} on {options.topology}", flush=True)


if __name__ == "__main__":
    main()
