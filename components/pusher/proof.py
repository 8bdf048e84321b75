"""The proof before a push: the copy to be published, the evaluated model and training agree on the same rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from components.pusher.trained import Trained
from embedding_core.edge_cases import edge_cases
from embedding_core.errors import ParityError
from embedding_core.parity import Inputs, ParityReport, compare, score_signatures
from embedding_core.serving import columns_of, named_inputs

__all__ = ["Proof", "prove"]

_SERVED, _VECTORS, _RAW = "serving_default", "embeddings", "raw"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """What was measured.

    Attributes:
      report: differences by output: `training/...`, `training/embeddings/<feature>`, `evaluated/...`, and
        `raw/...` for the signature of named tensors.
      rows: rows of the split that were compared.
      edge_rows: generated edge cases that were compared besides.
    """

    report: ParityReport
    rows: int
    edge_rows: int

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {**self.report.to_dict(), "eval_rows": self.rows, "edge_rows": self.edge_rows}


def prove(exported: str, evaluated: str, trained: Trained, rows: Sequence[bytes], tolerance: float) -> Proof:
    """Score rows and their edge cases with three models, and compare them.

    Args:
      exported: folder of the serving-only SavedModel; loaded in a fresh process.
      evaluated: folder of the SavedModel that the Evaluator judged; loaded in another.
      trained: the model as training computes it.
      rows: serialized tf.Examples.
      tolerance: the largest difference allowed.

    Raises:
      ParityError: there are no rows, or one of the SavedModels does not load or score.
    """
    if not rows:
        raise ParityError("the eval split has no rows: nothing can be compared, and nothing is pushed.")
    edges = edge_cases(rows, trained.config, () if trained.dense is None else tuple(trained.dense.spec))
    every = [*rows, *edges]
    named, kept = named_inputs(columns_of(trained.config, trained.dense), every)
    # Two processes, and never one for both: TensorFlow shares vocabularies of the same file name within a process.
    requests: dict[str, Inputs] = {_SERVED: every, _VECTORS: every, **({_RAW: named} if kept else {})}
    with ThreadPoolExecutor(max_workers=2) as pool:
        judging = pool.submit(score_signatures, evaluated, {_SERVED: every})
        serving = pool.submit(score_signatures, exported, requests)
        expected = trained.score(every)
        judged, served = judging.result()[_SERVED], serving.result()
    parts = [
        compare(expected[_SERVED], served[_SERVED], tolerance=tolerance, signature="training"),
        compare(expected[_VECTORS], served[_VECTORS], tolerance=tolerance, signature="training/embeddings"),
        compare(judged, served[_SERVED], tolerance=tolerance, signature="evaluated"),
    ]
    if kept:
        wanted = {name: value[kept] for name, value in expected[_SERVED].items()}
        parts.append(compare(wanted, served[_RAW], tolerance=tolerance, signature=_RAW))
    return Proof(report=parts[0].merged(*parts[1:]), rows=len(rows), edge_rows=len(edges))
