"""Rebuilds a trained model from its artifacts, ready to run and to export."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from components.run_inputs import same_run_digests, sources_of_run
from embedding_core.columns import DenseInputs
from embedding_core.config import EmbeddingConfig
from embedding_core.engines import HostEngine
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import call_model, is_two_tower, sequence_lengths, served_outputs, token_candidate
from embedding_core.rows_dtype import RowsDtype, RowsDtypes
from embedding_core.serving import ExportForm, columns_of, export_model, named_inputs, synthetic_rows
from embedding_core.serving.lookups import rounded
from embedding_core.tasks import POSITIVE, Task
from embedding_core.top_k_config import TopK
from embedding_core.training import Inputs
from embedding_core.training.finished_run import restore_run
from embedding_core.training.training_inputs import RowParser

_BATCH = 512
_CANDIDATES = 4096
_ROUNDED = 65536


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
            for start in range(0, table.shape[0], _ROUNDED):
                places = tf.range(start, min(start + _ROUNDED, table.shape[0]))
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
            Inputs(
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
