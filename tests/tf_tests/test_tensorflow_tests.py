"""Runs TensorFlow's own TPU embedding tests if the environment variable TF_TESTS names a checkout of TensorFlow."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tf_tests import record

CHECKOUT = os.environ.get("TF_TESTS", "")
RUN = Path(__file__).with_name("run.py")
NOT_PASSING = {  # docs/simulated_tpu.md says why
    "tpu_embedding_v2_checkpoint_test::test_checkpoint_save_retrieves",
    "tpu_embedding_v2_mp_strategy_test::test_spmd_training0 (False)",
    "tpu_embedding_v2_mp_strategy_test::test_spmd_training1 (True)",
}

NOT_PASSING_ON_SPARSE_CORES = {f"tpu_embedding_v3_test::test_pipelining_and_summary_recording{n}" for n in range(16)}
OF_ONE_CHIP = {  # they take the values of all chips for those of one
    f"tpu_embedding_v3_test::test_{name}"
    for name in (
        "compute_sparse_core_stats_and_pass_it_to_api",
        "embedding_initialization",
        "single_feature_single_table_backwards_pass_with_csr_input",
        "single_feature_single_table_lookup_with_static_buffer_size",
        "two_feature_single_table_backwards_pass_with_csr_input",
        "two_feature_two_tables_stacked_backwards_pass_with_csr_input",
        "two_features_single_table_lookup_with_csr_input",
        "two_features_two_tables_stacked_lookup_with_csr_input",
    )
}
needs_checkout = pytest.mark.skipif(
    not Path(CHECKOUT, "tensorflow/python/tpu/tests").is_dir() or not CHECKOUT,
    reason=f"TF_TESTS is {CHECKOUT!r}: no checkout of TensorFlow",
)


def run(topology, *options):
    """Run TensorFlow's tests; return the tests that do not pass, and the passed and total numbers of each group."""
    command = [sys.executable, str(RUN), CHECKOUT, "--topology", topology, *options]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    print(found)
    failing = {re.sub(r":\s.*", "", line) for line in found.splitlines() if "::" in line}
    counts = re.findall(r"^(.*): passed (\d+) of (\d+)", found, re.MULTILINE)
    return failing, {group: [int(passed), int(total)] for group, passed, total in counts}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_checkout
@pytest.mark.parametrize("topology", ["1x2", "2x1", "2x2"])
def test_tensorflows_tests_pass_but_for_the_documented_ones(topology):
    failing, counts = run(topology)
    assert failing == NOT_PASSING
    assert [total for _, total in counts.values()] == [91, 8, 16]
    if record.is_of_this_python():
        record.add(topology, counts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_checkout
@pytest.mark.parametrize(("topology", "of_one_chip"), [("1x1", set()), ("1x2", OF_ONE_CHIP)])
def test_tensorflows_sparse_core_tests_pass_as_documented(topology, of_one_chip):
    failing, counts = run(topology, "--sparse-cores")
    assert {re.sub(r" \(.*", "", name) for name in failing} == NOT_PASSING_ON_SPARSE_CORES | of_one_chip
    assert [total for _, total in counts.values()] == [10, 6, 1, 6, 6]
    if record.is_of_this_python():
        record.add(topology, counts)
