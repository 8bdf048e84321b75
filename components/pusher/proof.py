"""Proves before a push that the copy to be published, the evaluated model and training agree on the same rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from components.base_executor import files_below
from components.pusher.trained_model import Sources, Trained, load_trained
from components.pusher.version_manifest import verify_version
from embedding_core.errors import CheckpointError, ParityError
from embedding_core.proof.edge_cases import edge_cases, read_rows
from embedding_core.proof.parity import Inputs, ParityReport, compare, score_signatures
from embedding_core.schema import Json
from embedding_core.serving import columns_of, named_inputs

_SERVED, _VECTORS, _RAW = "serving_default", "embeddings", "raw"
_REAL = "rows of the split: what is served is what was trained"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """What was measured.

    Attributes:
      report: differences by output: `training/...`, `training/embeddings/<feature>`, `evaluated/...`, and
        `raw/...` for the signature of named tensors.
      rows: number of rows of the split that were compared.
      edge_rows: number of generated edge cases that were also compared.
    """

    report: ParityReport
    rows: int
    edge_rows: int

    def to_dict(self) -> Json:
        """Return the figures as JSON values."""
        return {**self.report.to_dict(), "eval_rows": self.rows, "edge_rows": self.edge_rows}


def prove(exported: str, evaluated: str, trained: Trained, rows: Sequence[bytes], tolerance: float) -> Proof:
    """Score rows and their edge cases with three models, and compare the scores.

    Args:
      exported: folder of the serving-only SavedModel; loaded in a fresh process.
      evaluated: folder of the SavedModel that the Evaluator judged; loaded in another process.
      trained: the model as training computes it.
      rows: serialized tf.Examples.
      tolerance: the largest difference allowed.

    Raises:
      ParityError: there are no rows, or one of the SavedModels does not load or score.
    """
    if not rows:
        raise ParityError("the eval split has no rows: nothing can be compared, and nothing is pushed.")
    edges = edge_cases(rows, trained.config, () if trained.dense is None else tuple(trained.dense.spec))
    every = [*rows, *(edge.row for edge in edges)]
    rules = [_REAL] * len(rows) + [f"{edge.feature}: {edge.rule}" for edge in edges]
    tensors, kept = named_inputs(columns_of(trained.config, trained.dense), every)
    # Two processes, and never one for both: TensorFlow shares vocabularies of the same file name within a process.
    requests: dict[str, Inputs] = {_SERVED: every, _VECTORS: every, **({_RAW: tensors} if kept else {})}
    with ThreadPoolExecutor(max_workers=2) as pool:
        judging = pool.submit(score_signatures, evaluated, {_SERVED: every})
        serving = pool.submit(score_signatures, exported, requests)
        expected = trained.score(every)
        judged, served = judging.result()[_SERVED], serving.result()
    same = functools.partial(compare, tolerance=tolerance, rules=rules)
    parts = [
        same(expected[_SERVED], served[_SERVED], signature="training"),
        same(expected[_VECTORS], served[_VECTORS], signature="training/embeddings"),
        same(judged, served[_SERVED], signature="evaluated"),
    ]
    if kept:
        wanted = {name: value[kept] for name, value in expected[_SERVED].items()}
        parts.append(same(wanted, served[_RAW], signature=_RAW, rules=[rules[row] for row in kept]))
    return Proof(report=parts[0].merged(*parts[1:]), rows=len(rows), edge_rows=len(edges))


def rows_below(folders: Sequence[str], limit: int) -> list[bytes]:
    """Read the first serialized tf.Examples of the folders of a split."""
    return read_rows(files_below(folders), limit)


def prove_again(version: str, rows: int, tolerance: float) -> Proof:
    """Repeat the proof of a published version, from the artifacts that it was made of.

    Args:
      version: folder of the version; verified first.
      rows: how many rows of the split are compared.
      tolerance: the largest difference allowed.

    Raises:
      CheckpointError: the version is damaged, or does not say what it was made of.
      EmbeddingError: an artifact that it was made of is gone, or was changed.
    """
    made_of = verify_version(version)["facts"].get("sources")
    if made_of is None:
        raise CheckpointError(f"{version!r} does not say what it was made of: EmbeddingPusher did not publish it.")
    evaluated, folders = made_of.pop("evaluated"), made_of.pop("examples")
    return prove(version, evaluated, load_trained(Sources(**made_of)), rows_below(folders, rows), tolerance)
