"""The proof before a push: the exported model, the model that was evaluated and training agree on the same rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from components.pusher.trained import Trained
from embedding_core.edge_cases import edge_cases
from embedding_core.errors import ParityError
from embedding_core.parity import ParityReport, compare, score_in_fresh_process, score_signatures

__all__ = ["Proof", "prove"]

_SERVED, _VECTORS = "serving_default", "embeddings"
_CANARY_ROWS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """What was measured, and what a canary must answer.

    Attributes:
      report: differences by output: `training/...` and `evaluated/...`.
      rows: rows of the eval split among those compared.
      edge_rows: generated edge cases among them.
      canary: rows for `check_copy`.
      answers: what the exported model answered for them.
    """

    report: ParityReport
    rows: int
    edge_rows: int
    canary: Sequence[bytes]
    answers: Mapping[str, npt.NDArray[Any]]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {**self.report.to_dict(), "eval_rows": self.rows, "edge_rows": self.edge_rows}

    def check_copy(self, path: str) -> None:
        """Load a copy of the exported model in a fresh process; it must answer as the original did.

        Raises:
          ParityError: it does not load, or answers otherwise.
        """
        found = score_in_fresh_process(path, self.canary, _SERVED)
        report = compare(self.answers, found, tolerance=self.report.tolerance, signature="canary")
        if not report.passed:
            raise ParityError(f"the published copy does not answer as the model that was checked: {report.reason}")


def prove(exported: str, evaluated: str, trained: Trained, rows: Sequence[bytes], tolerance: float) -> Proof:
    """Score rows and their edge cases with three models and compare them.

    Args:
      exported: folder of the serving-only SavedModel; loaded in a fresh process.
      evaluated: folder of the SavedModel that the Evaluator judged; loaded in another.
      trained: the model as training computes it.
      rows: serialized tf.Examples of the eval split.
      tolerance: the largest difference allowed.

    Raises:
      ParityError: there are no rows, or one of the SavedModels does not load or score.
    """
    if not rows:
        raise ParityError("the eval split has no rows: nothing can be compared, and nothing is pushed.")
    spare = () if trained.dense is None else tuple(trained.dense.spec)
    edges = edge_cases(rows, trained.config, spare)
    every = [*rows, *edges]
    expected = trained.score(every)
    served = score_signatures(exported, {_SERVED: every, _VECTORS: every})
    judged = score_in_fresh_process(evaluated, every, _SERVED)
    parts = [
        compare(expected[_SERVED], served[_SERVED], tolerance=tolerance, signature="training"),
        compare(expected[_VECTORS], served[_VECTORS], tolerance=tolerance, signature="training/embeddings"),
        compare(judged, served[_SERVED], tolerance=tolerance, signature="evaluated"),
    ]
    first, last = every[: _CANARY_ROWS // 2], every[-_CANARY_ROWS // 2 :]
    answers = {
        name: np.concatenate([value[: len(first)], value[len(every) - len(last) :]])
        for name, value in served[_SERVED].items()
    }
    return Proof(
        report=parts[0].merged(*parts[1:]),
        rows=len(rows),
        edge_rows=len(edges),
        canary=[*first, *last],
        answers=answers,
    )
