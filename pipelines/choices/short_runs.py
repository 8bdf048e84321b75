"""Trains choices on a sample of the rows: the user's pipeline up to its trainer. Results are kept, and not repeated."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import time
from collections.abc import Mapping, Sequence

import tf_keras

from components.artifact_files import read_embedding_config
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import DataError
from embedding_core.storage import json_digest
from pipelines.choices.choice import AS_CONFIGURED, Choice
from pipelines.choices.kept import KeptResults, Types
from pipelines.choices.sample import Sample
from pipelines.config import PipelineConfig
from pipelines.console.expected_errors import expected_message, was_preempted
from pipelines.local.run_local import run_until
from pipelines.pipeline.fingerprint import training_fingerprint

_RESULTS = "results.json"
_FIGURE = (float, int, type(None))
_KEPT: Types = {
    "choice": (str,),
    "seed": (int,),
    "auc": _FIGURE,
    "loss": _FIGURE,
    "seconds": (float, int),
    "error": (str,),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShortRun:
    """One training of a choice.

    Attributes:
      choice: in words.
      seed: seed of the run.
      auc: AUC on the eval split of the sample; None if no label is binary, or the run failed.
      loss: loss on the same rows; None if the run failed.
      seconds: time that it took.
      error: message of a run that failed.
    """

    choice: str
    seed: int
    auc: float | None = None
    loss: float | None = None
    seconds: float = 0.0
    error: str = ""


class ShortRuns:
    """Runs choices, each with some seeds, and keeps the results in a folder.

    Args:
      config: the user's configuration.
      sample: the rows.
      folder: folder of the results and of the runs' files.

    Raises:
      DataError: the file of the results is damaged.
    """

    def __init__(self, config: PipelineConfig, sample: Sample, folder: str) -> None:
        work_dir = os.path.join(folder, "work")
        self._config = _short(config, sample, work_dir)
        self._whole = _short(config, sample._replace(data=config.data), work_dir)
        self._facts = {"rows": sample.digest, **training_fingerprint(self._config)}
        self._kept = KeptResults(os.path.join(folder, _RESULTS), _KEPT)

    def counted_tables(self) -> EmbeddingConfig:
        """Count the vocabularies in all rows of the data, and return the tables that the pipeline makes for them.

        Raises:
          EmbeddingError: the data or the configuration is invalid.
        """
        (tables,) = run_until(self._whole, "TableConfigGen")
        return read_embedding_config(tables.uri)

    def kept(self, tables: EmbeddingConfig, choice: Choice, seed: int) -> ShortRun | None:
        """Return the result of a previous run of the same choice, rows, settings and code; None if there is none."""
        found = self._kept.get(self.key(tables, choice, seed))
        return None if found is None else ShortRun(**{**found, "choice": choice.words})

    def run(self, tables: EmbeddingConfig, choice: Choice, seed: int) -> ShortRun:
        """Train a choice; an error of the run is in the result, and is not kept.

        Raises:
          PreemptionError: SIGTERM stopped the training.
        """
        begun = time.monotonic()
        try:
            outputs = run_until(self._configured(tables, choice, seed), "EmbeddingTrainer")
        except Exception as error:  # any error of the user's model or of TensorFlow; the plan goes on with other runs
            if was_preempted(error):
                raise
            message = expected_message(error) or f"{type(error).__name__}: {error}"
            return ShortRun(choice=choice.words, seed=seed, error=" ".join(message.split())[:400])
        facts = next(one.facts for one in outputs if one.type == "Model")
        done = ShortRun(
            choice=choice.words,
            seed=seed,
            auc=facts.get("eval_auc"),
            loss=facts.get("eval_loss"),
            seconds=time.monotonic() - begun,
        )
        if done.auc is None and done.loss is None:  # a `run_fn` of the user writes what it likes
            return dataclasses.replace(done, error="the training recorded neither an AUC nor a loss on the eval split")
        self._kept.keep(self.key(tables, choice, seed), dataclasses.asdict(done))
        for one in outputs:  # models of many runs would fill the disk, and no later node reads them
            shutil.rmtree(one.uri, ignore_errors=True)
        tf_keras.backend.clear_session()
        gc.collect()  # graphs of many runs would fill the memory
        return done

    def _configured(self, tables: EmbeddingConfig, choice: Choice, seed: int) -> PipelineConfig:
        """Return the configuration of a run; every table gets its dim, whatever the size of the sample's vocabulary."""
        dims = {table.name: table.dim for table in choice.applied_to(tables).tables}
        section = {**self._config.to_mapping()["tables"]}
        for name, dim in dims.items():
            section[name] = {**section.get(name, {}), "dim": dim}
        training = self._config.training
        if choice.batch_size is not None:
            training = training.replace(batch_size=choice.batch_size)
        return self._config.replace(tables=section, training=training, seed=seed)

    def key(self, tables: EmbeddingConfig, choice: Choice, seed: int) -> str:
        """Return the digest of all that a run depends on: rows, configuration, code and TensorFlow's version."""
        return json_digest({"config": self._configured(tables, choice, seed).to_mapping(), **self._facts})


def _short(config: PipelineConfig, sample: Sample, work_dir: str) -> PipelineConfig:
    """Return the configuration of short runs: on the sample, in its own folder, from initial rows, on this machine."""
    training = config.training.replace(topology=None)
    if training.strategy in ("tpu", "simulated_tpu", "parameter_server"):
        training = training.replace(strategy="auto")
    if training.steps is not None:
        training = training.replace(steps=max(1, round(training.steps * sample.rows / sample.of)))
    return config.replace(
        name="plan",
        data=sample.data,
        training=training,
        warm_start=None,
        vocabulary_evolution=None,
        kubeflow=None,
        work_dir=work_dir,
        metadata=os.path.join(work_dir, "metadata.sqlite"),
    )


def figures_of(
    runs: Mapping[Choice, Sequence[ShortRun]],
) -> tuple[str, dict[Choice, list[float]]]:
    """Return the name of the figure that compares choices, "AUC" or "loss", and its values by choice.

    Raises:
      DataError: no run of the configured model has a figure.
    """
    configured = [one for one in runs.get(AS_CONFIGURED, ()) if not one.error]
    name = "AUC" if configured and all(one.auc is not None for one in configured) else "loss"
    values = {
        choice: [value for one in done if (value := one.auc if name == "AUC" else one.loss) is not None]
        for choice, done in runs.items()
    }
    if not values.get(AS_CONFIGURED):
        errors = [one.error for one in runs.get(AS_CONFIGURED, ()) if one.error]
        raise DataError(f"no short run of the model as configured has a result: {(errors or ['it has no figures'])[0]}")
    return name, values
