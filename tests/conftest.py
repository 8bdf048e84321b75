"""One process for all kinds of tests: quiet, tf_keras, and logical devices for the simulated TPU."""

from pipelines.console.quiet import load_tensorflow, silence


def pytest_configure():
    """TensorFlow fixes its logical devices at its first operation, so they are asked for before any test is imported.

    2 hosts x 4 cores is the largest topology in the tests; the default device stays the first one.
    """
    silence()
    load_tensorflow()
    from embedding_core.engines import simulated_tpu

    simulated_tpu(hosts=2, cores_per_host=4)
