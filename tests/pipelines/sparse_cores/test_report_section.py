"""What the report of a run shows of the limits of SparseCores."""

import dataclasses
from pathlib import Path

from pipelines.report.html_report import save_report
from tests.pipelines.report.test_html_report import REPORT

SPARSE_CORES = {
    "topology": "v6e-4", "chips": 4, "sparse_cores_per_chip": 2, "batch_size": 1024, "method": "exact", "batches": 7000,
    "batches_drawn": 7000, "batches_evaluated": 13, "confidence": None, "assumption": None,
    "stacks": [
        {
            "stack": "item_<b>", "max_ids_per_partition": 4321, "max_unique_ids_per_partition": 321,
            "buffer_per_chip": 9984, "buffer_bytes_per_chip": 119808, "minibatches": 1,
        }
    ],
    "drift": None,
}  # fmt: skip


def test_html_shows_the_limits_of_sparse_cores(tmp_path):
    text = Path(
        save_report(dataclasses.replace(REPORT, further={"sparse_cores": SPARSE_CORES}), str(tmp_path))
    ).read_text()
    assert "v6e-4: 4 chips of 2 SparseCores" in text
    assert "largest counts of all 7,000 batches of the training and 13 of an evaluation" in text
    assert "item_&lt;b&gt;" in text
    assert "4,321" in text


def test_html_shows_the_drift_and_the_method_of_a_bound(tmp_path):
    previous = {"max_ids_per_partition": 4000, "max_unique_ids_per_partition": 299, "buffer_per_core": 8}
    bound = {
        **SPARSE_CORES, "method": "bound", "confidence": 0.99, "batches_drawn": 65, "assumption": "alike",
        "drift": {"item_<b>": {"previous": previous, "change": {}, "batches_over": 17}},
    }  # fmt: skip
    text = Path(save_report(dataclasses.replace(REPORT, further={"sparse_cores": bound}), str(tmp_path))).read_text()
    assert "bounds with 99% confidence for 7,000 batches, from the first 65; assumption: alike" in text
    assert '<td class="n">4,000</td><td class="n">299</td><td class="n">17</td>' in text
