"""Rebuilds a trained model, and proves before a push that it, the evaluated model and the copy to publish agree."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from components.base_executor import files_below
from components.pusher.push_section import Push
from components.pusher.served import model_digests, verify_version
from components.run_inputs import same_run_digests, sources_of_run
from embedding_core.columns import DenseInputs, TokenTable
from embedding_core.config import EmbeddingConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import CheckpointError, ConfigError, ParityError
from embedding_core.model_inputs import call_model, is_two_tower, sequence_lengths, served_outputs, token_candidate
from embedding_core.proof.parity import (
    EVALUATED,
    EdgeCase,
    Inputs,
    Outputs,
    ParityReport,
    compare,
    edge_cases,
    read_rows,
    score_signatures,
)
from embedding_core.proof.top_k import Answers, answers_with, best_of_all, compare_answers, filters_of
from embedding_core.schema import Json
from embedding_core.serving import ExportForm, columns_of, export_model, named_inputs, synthetic_rows
from embedding_core.serving.lookups import rounded
from embedding_core.serving.table_blocks import lines_of
from embedding_core.serving_config import RowsDtype, RowsDtypes, TopK
from embedding_core.tasks import POSITIVE, Task
from embedding_core.training import Inputs as ColumnInputs
from embedding_core.training.finished_run import restore_run
from embedding_core.training.training_inputs import RowParser

_BATCH = 512
_CANDIDATES = 4096
_ROWS_AT_ONCE = 65536


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """The URIs of the artifacts that a trained model is rebuilt from."""

    model_run: str
    vocabularies: str
    table_configs: str
    transform_graph: str | None = None
    schema: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model that computes what training computes.

    Attributes:
      config: the tables and features.
      files: plain token file by vocabulary name.
      digests: sha256 of each vocabulary.
      engine: holds the tables.
      model: the dense part.
      dense: source of the dense inputs; None if the model has no dense inputs and no column is transformed.
      tasks: what the model was trained for.
    """

    config: EmbeddingConfig
    files: Mapping[str, str]
    digests: Mapping[str, str]
    engine: HostEngine
    model: Any
    dense: DenseInputs | None
    tasks: tuple[Task, ...]

    @property
    def candidate_feature(self) -> str | None:
        """The feature whose tokens are the candidates of `top_k`; None if the model has no such signature."""
        return token_candidate(self.model, self.config) if is_two_tower(self.model) else None

    def candidate_vectors(self) -> npt.NDArray[np.float32]:
        """Compute the vectors of all candidates, float32 `[tokens, n]` in the order of the vocabulary.

        Raises:
          ConfigError: `candidate_feature` is None.
        """
        feature = self.candidate_feature
        if feature is None:
            raise ConfigError("a candidate of this model is not a token of one feature: `top_k` cannot be computed.")
        table = self.config.table_of(feature)
        ids = tf.range(table.vocabulary_size - table.oov_rows, dtype=tf.int64)
        parts = tf.data.Dataset.from_tensor_slices(ids[:, tf.newaxis]).batch(_CANDIDATES)
        ragged = ({feature: tf.RaggedTensor.from_tensor(part)} for part in parts)
        return np.concatenate(
            [self.model.candidate_vectors(self.engine.lookup(features)).numpy() for features in ragged]
        )

    def is_served_as_evaluated(self, dtypes: Mapping[str, RowsDtype], top_k: TopK, form: ExportForm | None) -> bool:
        """Return whether `export` would write the model that the trainer exported and the Evaluator judged.

        That model has float32 rows, the defaults of `TopK`, and no other form.
        """
        plain = form is None and all(dtype == "float32" for dtype in dtypes.values())
        return plain and (top_k == TopK() or not is_two_tower(self.model))

    def export(
        self,
        folder: str,
        rows_dtype: RowsDtypes = "float32",
        top_k: TopK | None = None,
        form: ExportForm | None = None,
    ) -> None:
        """Write the serving-only SavedModel, with rows of type `rows_dtype`."""
        export_model(
            folder,
            config=self.config,
            tables=self.engine.embedding_tables,
            vocabularies=self.files,
            model=self.model,
            dense=self.dense,
            tasks=self.tasks,
            rows_dtype=rows_dtype,
            top_k=top_k,
            form=form,
        )

    def round_rows(self, dtypes: Mapping[str, RowsDtype]) -> None:
        """Replace the rows of the tables in `dtypes` by those that are served for them, slice after slice."""
        for name, dtype in dtypes.items():
            table = self.engine.table_variables[name]
            for start in range(0, table.shape[0], _ROWS_AT_ONCE):
                places = tf.range(start, min(start + _ROWS_AT_ONCE, table.shape[0]))
                table.scatter_update(tf.IndexedSlices(rounded(tf.gather(table, places).numpy(), dtype), places))

    def synthetic_rows(self, count: int) -> list[bytes]:
        """Make serialized tf.Examples that every signature accepts and that do not come from a data set."""
        return synthetic_rows(self.config, self.dense, self.files, count)

    def requests(self, rows: Sequence[bytes]) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Make the inputs of the signatures that predict, by name; `raw` gets the rows that fit its tensors, if any."""
        named, kept = named_inputs(columns_of(self.config, self.dense), rows)
        by_signature: dict[str, dict[str, npt.NDArray[Any]]] = {
            "serving_default": {"examples": np.asarray(rows, object)}
        }
        return {**by_signature, "raw": named} if kept else by_signature

    def score(self, rows: Sequence[bytes]) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Return what training computes for serialized tf.Examples, under the names of the exported signatures.

        Ids come from the input pipeline of training, vectors from its engine, outputs from its model.
        """
        batches = [self._score(batch) for batch in self._batches(rows)]
        return {
            signature: {name: np.concatenate([batch[signature][name] for batch in batches]) for name in outputs}
            for signature, outputs in batches[0].items()
        }

    def _batches(self, rows: Sequence[bytes]) -> Iterator[Any]:
        dense = self.dense or DenseInputs(spec={})
        parser = RowParser(
            ColumnInputs(
                config=self.config,
                vocabularies=dict(self.files),
                dense=dense.names,
                tasks=(POSITIVE,),
                raw_spec=dense.spec,
                transform=dense.transform,
            )
        )
        examples = tf.data.Dataset.from_tensor_slices(np.asarray(list(rows), object))
        return iter(examples.batch(_BATCH).map(parser))

    def _score(self, batch: Any) -> dict[str, dict[str, npt.NDArray[Any]]]:
        vectors = self.engine.lookup(batch["ids"])
        numbers = {**batch["dense"], **sequence_lengths(self.config, batch["ids"])}
        served = served_outputs(self.tasks, call_model(self.model, vectors, numbers, self.tasks))
        scores = {
            "embeddings": {name: value.numpy() for name, value in vectors.items()},
            "serving_default": {name: value.numpy() for name, value in served.items()},
        }
        if is_two_tower(self.model):
            inputs = {**numbers, **vectors}
            scores["query"] = {"vector": self.model.query_vectors(inputs).numpy()}
            scores["candidate"] = {"vector": self.model.candidate_vectors(inputs).numpy()}
        return scores


def load_trained(sources: Sources) -> Trained:
    """Rebuild a trained model from the artifacts of its run.

    Raises:
      VocabularyError: a vocabulary is damaged, or is not the one that the tables' rows belong to.
      CheckpointError: the checkpoint is missing, damaged, or of other tables.
      ConfigError: the model reads numbers, and there is neither a transform graph nor a schema.
    """
    run = restore_run(sources.model_run)
    digests = same_run_digests(run.description, sources.model_run, sources.vocabularies, sources.table_configs)
    numbers = sources_of_run(run.description, transform_graph=sources.transform_graph, schema=sources.schema)
    return Trained(
        config=run.description.config,
        files={name: os.path.join(sources.vocabularies, f"{name}.txt") for name in digests},
        digests=digests,
        engine=run.engine,
        model=run.model,
        dense=numbers.of_features(),
        tasks=run.description.tasks,
    )


# Proves what a two-tower model serves besides its logit: the vectors of its towers, and the best candidates.

_TOWERS = ("query", "candidate")
_TOP_K, _FILTERED = "top_k", "top_k_filtered"


class RetrievalProof:
    """The requests to a two-tower model's signatures, and the comparison of what they return.

    Attributes:
      requests: inputs by signature.
    """

    def __init__(
        self, trained: Trained, rows: Sequence[bytes], expected: Mapping[str, Outputs], settings: TopK
    ) -> None:
        """Make the requests.

        Args:
          trained: the model as training computes it.
          rows: serialized tf.Examples.
          expected: what training computes for these rows, from `Trained.score`.
          settings: settings of `top_k` that the model was exported with.
        """
        named = {tower: _named(trained, tower, rows) for tower in _TOWERS}
        named = {tower: (tensors, kept) for tower, (tensors, kept) in named.items() if kept}
        self._expected = {tower: expected[tower]["vector"][kept] for tower, (_, kept) in named.items()}
        self.requests: dict[str, Inputs] = {tower: tensors for tower, (tensors, _) in named.items()}
        self._answers: dict[str, Answers] = {}
        feature = trained.candidate_feature
        if feature is None or "query" not in named:
            return
        self._table = trained.config.table_of(feature)
        file = trained.files[str(self._table.vocabulary)]
        self._ids = TokenTable.of(self._table, file)
        queries, candidates, tensors = self._expected["query"], trained.candidate_vectors(), named["query"][0]
        self._exact = settings.approximate.lists_of(len(candidates)) is None
        scores, best = best_of_all(queries, candidates, settings.k)
        filters = filters_of(best, len(candidates))
        self._answers[_TOP_K] = Answers(queries, candidates, scores)
        self._answers[_FILTERED] = answers_with(filters, queries, candidates, settings.k)
        self.requests[_TOP_K] = tensors
        self.requests[_FILTERED] = {**tensors, **filters.tokens(lines_of(file))}

    def compare(self, served: Mapping[str, Outputs], tolerance: float) -> tuple[list[ParityReport], dict[str, float]]:
        """Compare the outputs of the signatures.

        Returns:
          The differences, and by signature the share of the best candidates that an approximate search found. The
          shares are empty for an exact search, whose scores are compared rank by rank.
        """
        reports = [
            compare({"vector": vectors}, served[tower], tolerance=tolerance, signature=f"training/{tower}")
            for tower, vectors in self._expected.items()
        ]
        recall = {}
        for name, wanted in self._answers.items():
            report, recall[name] = compare_answers(
                wanted,
                served[name],
                self._ids.ids_of(tf.constant(served[name]["tokens"])).numpy(),
                exact=self._exact,
                tolerance=tolerance,
                signature=f"training/{name}",
            )
            reports.append(report)
        return reports, {} if not self._answers or self._exact else recall


def _named(trained: Trained, tower: str, rows: Sequence[bytes]) -> tuple[dict[str, npt.NDArray[Any]], list[int]]:
    """Return the named tensors of a tower, and the positions of the rows that fit into them."""
    known = {feature.name for feature in trained.config.features}
    names = getattr(trained.model, f"{tower}_features")
    config = trained.config.of_features(name for name in names if name in known)
    columns = columns_of(config, trained.dense, with_dense=any(name not in known for name in names))
    return named_inputs(columns, rows)


# Proves before a push that the model to be published agrees with training, and with the evaluated model.

_SERVED, _VECTORS, _RAW, _ROUNDED = "serving_default", "embeddings", "raw", "rounded"
_REAL = "rows of the split: what is served is what was trained"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """The differences and the recall that were measured.

    Attributes:
      report: differences by output: `training/...`, `training/embeddings/<feature>`, and `raw/...` for the signature
        of named tensors; `evaluated/...` unless the files are those that were evaluated; `training/query/vector`,
        `training/candidate/vector`, `training/top_k/...` and `training/top_k_filtered/...` of a two-tower model. If
        rows are rounded, `rounded/embeddings/<feature>` is the difference from training's lookup with the rounded rows.
      rows: number of rows of the split that were compared.
      edge_rows: number of generated edge cases that were also compared.
      recall: by signature, the share of the best candidates that an approximate search found; empty if exact.
      min_recall: the least share allowed.
      rounded: the tables whose rows are rounded, with their types.
    """

    report: ParityReport
    rows: int
    edge_rows: int
    recall: Mapping[str, float] = dataclasses.field(default_factory=dict)
    min_recall: float = 0.0
    rounded: Mapping[str, RowsDtype] = dataclasses.field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether everything is within the tolerance, and the approximate search finds enough."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why the proof failed, in one line; empty if it passed."""
        low = [name for name, share in self.recall.items() if share < self.min_recall]
        if not self.report.passed or not low:
            return f"{self.report.reason}{self._rounding}"
        return (
            f"{low[0]} found {self.recall[low[0]]:.4f} of the best candidates, and `push.top_k.approximate.min_recall` "
            f"is {self.min_recall:g}: raise `probes`, or search exactly (`when: never`)."
        )

    @property
    def _rounding(self) -> str:
        """The remedy if nothing but the rounding of rows exceeds the tolerance."""
        exact = [item.within for item in self.report.differences if item.name.startswith(f"{_ROUNDED}/")]
        if self.report.passed or not exact or not all(exact):
            return ""
        types = ", ".join(f"{name!r} as {dtype}" for name, dtype in self.rounded.items())
        return f" Rows are rounded ({types}): raise `push.tolerance`, or serve more of these tables as float32."

    def to_dict(self) -> Json:
        """Return the figures as JSON values."""
        figures = {**self.report.to_dict(), "eval_rows": self.rows, "edge_rows": self.edge_rows}
        return {**figures, "passed": self.passed, "reason": self.reason, "recall": dict(self.recall)}


def prove(
    exported: str,
    evaluated: str | None,
    trained: Trained,
    rows: Sequence[bytes],
    tolerance: float,
    top_k: TopK | None = None,
    dtypes: Mapping[str, RowsDtype] | None = None,
) -> Proof:
    """Score rows and their edge cases with training, the exported and the evaluated model, and compare the scores.

    If rows are served rounded, `trained` gets the same rows at the end, and looks up once more. The served vectors must
    be the same as these, within the default tolerance if `tolerance` is larger.

    Args:
      exported: folder of the serving-only SavedModel; loaded in a fresh process.
      evaluated: folder of the SavedModel that the Evaluator judged, loaded in another process; None if `exported` has
        its files, which the caller compared.
      trained: the model as training computes it.
      rows: serialized tf.Examples.
      tolerance: the largest difference allowed.
      top_k: settings of the export; None leaves out the signatures that only a two-tower model has.
      dtypes: types of the served rows by table; None if they are unknown.

    Raises:
      ParityError: rows are missing, or one of the SavedModels does not load or score.
    """
    if not rows:
        raise ParityError("the eval split has no rows: nothing can be compared, and nothing is pushed.")
    edges = edges_of(trained, rows)
    every = [*rows, *(edge.row for edge in edges)]
    rules = [_REAL] * len(rows) + [f"{edge.feature}: {edge.rule}" for edge in edges]
    tensors, kept = named_inputs(columns_of(trained.config, trained.dense), every)
    # Two processes, and never one for both: TensorFlow shares vocabularies of the same file name within a process.
    requests: dict[str, Inputs] = {_SERVED: every, _VECTORS: every}
    if kept:
        requests[_RAW] = tensors
    with ThreadPoolExecutor(max_workers=2) as pool:
        judging = None if evaluated is None else pool.submit(score_signatures, evaluated, {_SERVED: every})
        if top_k is None or not is_two_tower(trained.model):
            retrieval, serving = None, pool.submit(score_signatures, exported, requests)
            expected = trained.score(every)
        else:  # the requests depend on the expected answers
            expected = trained.score(every)
            retrieval = RetrievalProof(trained, every, expected, top_k)
            serving = pool.submit(score_signatures, exported, requests | retrieval.requests)
        served = serving.result()
    same = functools.partial(compare, tolerance=tolerance, rules=rules)
    parts = [
        same(expected[_SERVED], served[_SERVED], signature="training"),
        same(expected[_VECTORS], served[_VECTORS], signature="training/embeddings"),
    ]
    if judging is not None:
        parts.append(same(judging.result()[_SERVED], served[_SERVED], signature=EVALUATED))
    if kept:
        wanted = {name: value[kept] for name, value in expected[_SERVED].items()}
        parts.append(same(wanted, served[_RAW], signature=_RAW, rules=[rules[row] for row in kept]))
    more, recall = ([], {}) if retrieval is None else retrieval.compare(served, tolerance)
    lossy: dict[str, RowsDtype] = {name: dtype for name, dtype in (dtypes or {}).items() if dtype != "float32"}
    if lossy:
        trained.round_rows(lossy)
        again, closely = trained.score(every)[_VECTORS], min(tolerance, Push().tolerance)
        parts.append(same(again, served[_VECTORS], signature=f"{_ROUNDED}/{_VECTORS}", tolerance=closely))
    return Proof(
        report=parts[0].merged(*parts[1:], *more),
        rows=len(rows),
        edge_rows=len(edges),
        recall=recall,
        min_recall=0.0 if top_k is None else top_k.approximate.min_recall,
        rounded=lossy,
    )


def edges_of(trained: Trained, rows: Sequence[bytes]) -> list[EdgeCase]:
    """Make the edge cases that a model is compared on besides rows of the split."""
    return edge_cases(rows, trained.config, () if trained.dense is None else tuple(trained.dense.spec))


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
    facts = verify_version(version)["facts"]
    made_of = facts.get("sources")
    if made_of is None:
        raise CheckpointError(f"{version!r} does not say what it was made of: EmbeddingPusher did not publish it.")
    evaluated, folders = made_of.pop("evaluated"), made_of.pop("examples")
    copied = model_digests(version) == model_digests(evaluated)
    top_k = TopK.from_mapping(facts["top_k"]) if "top_k" in facts else None  # versions of earlier releases lack it
    trained, dtypes = load_trained(Sources(**made_of)), facts.get("rows_dtype")  # which earlier releases lack
    scored = None if copied else evaluated
    return prove(version, scored, trained, rows_below(folders, rows), tolerance, top_k, dtypes)
