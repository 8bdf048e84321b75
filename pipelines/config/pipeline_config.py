"""Defines the whole configuration of a pipeline: one class that names every section."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from components.example_gen.label_section import Columns, Label
from components.example_gen.row_selection import RowFilter, Split, SplitByHash
from components.pusher.push_section import Push
from components.shadow.shadow_section import Shadow
from embedding_core.errors import ConfigError
from embedding_core.health.health_section import Health
from embedding_core.planning.table_overrides import TableOverrides
from embedding_core.schema import NAME_RULE, ByName, Count, Listed, Mistakes, Name, PositiveNumber, Section, Text
from embedding_core.storage import is_remote
from embedding_core.tasks import Task
from embedding_core.training_config import Training
from embedding_core.warm_start import WarmStart
from pipelines.config.beam import Beam
from pipelines.config.data import Data
from pipelines.config.feature_sections import Features, VocabularyEvolution, VocabularyLimits
from pipelines.config.follow import Follow
from pipelines.config.kubeflow import Kubeflow
from pipelines.config.metrics import Evaluation
from pipelines.config.model import Model


class PipelineConfig(Section):
    """Configuration of one pipeline. `load_config` and `config_from_mapping` make and check it; its paths are absolute.

    Attributes:
      name: name of the pipeline, also in the metadata; by default the file's name.
      data: files that the rows are read from.
      label: value to predict.
      labels: several values to predict by one model, by name, in place of `label`; a row may lack some of these values.
      features: columns that the model sees.
      seed: seed of initial rows, shuffles and drawn negatives; a rerun on CPU gives the same tables.
      split: rule by which rows are held out for evaluation.
      preprocessing_fn: dotted path of your own function for Transform; null uses that of `pipelines.preprocessing`.
      columns: further columns that your `preprocessing_fn` reads: a list of names, if all hold numbers, or a mapping
        of each name to "float" or "token".
      sample_weight: column that weighs the rows in training and evaluation.
      class_weights: weight of a label's value in training, such as {0: 1, 1: 3}.
      row_filters: conditions that a row must meet; rows that do not are left out.
      vocabularies: limits of vocabularies, by name.
      vocabulary_evolution: how vocabularies grow out of those of a previous run; null counts only this run's data.
      tables: overrides of the defaults of tables, by name.
      model: model to train.
      training: how the model is trained.
      evaluation: how the model is judged.
      health: how healthy the embedding tables must be for a push; null does not measure them.
      warm_start: checkpoint that the model starts from; null starts from initial rows.
      shadow: recorded requests that are replayed before a push, and bounds; null leaves Shadow out of the pipeline.
      push: destination of the served model.
      follow: how `tfx-embeddings follow` runs the pipeline on spans as they arrive.
      beam: where the work of Beam's components is done.
      kubeflow: settings for Kubeflow Pipelines or Vertex AI; null if the pipeline is not compiled for them.
      permissions: who may read the files that a run writes, pushed versions included: only their "owner", also the
        owner's "group", or whoever the "umask" of the process allows. Files in a bucket follow the bucket's rules.
      metadata: sqlite file of ML Metadata, or address of a MySQL or MariaDB server as
        mysql://user@host:3306/database, with the password in the environment variable METADATA_PASSWORD, and with
        ?ssl-ca=/path/of/ca.pem for TLS with a verified server; several pipelines may share either. Null is a file in
        `work_dir`.
      work_dir: folder of everything that the pipeline writes; by default `runs/<name>` beside the file.
      python_path: folder of the modules that your dotted names are in, put last on `sys.path`; by default the file's
        folder.
    """

    FROM_THE_FILE: ClassVar[tuple[str, ...]] = ("name", "work_dir", "python_path")  # the loader fills them in

    name: Name
    data: Data
    label: Label | None = None
    labels: ByName[Label] = Field(default_factory=dict)
    features: Features
    seed: Count = 0
    split: Split = Field(default_factory=SplitByHash)
    preprocessing_fn: Text | None = None
    columns: Columns = Field(default_factory=dict)
    sample_weight: Text | None = None
    class_weights: ByName[PositiveNumber] = Field(default_factory=dict)
    row_filters: Listed[RowFilter] = ()
    vocabularies: ByName[VocabularyLimits] = Field(default_factory=dict)
    vocabulary_evolution: VocabularyEvolution | None = None
    tables: ByName[TableOverrides] = Field(default_factory=dict)
    model: Model = Field(default_factory=Model)
    training: Training = Field(default_factory=Training)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    health: Health | None = Field(default_factory=Health)
    warm_start: WarmStart | None = None
    shadow: Shadow | None = None
    push: Push = Field(default_factory=Push)
    follow: Follow = Field(default_factory=Follow)
    beam: Beam = Field(default_factory=Beam)
    kubeflow: Kubeflow | None = None
    permissions: Literal["owner", "group", "umask"] = "owner"
    metadata: Text | None = None
    work_dir: Text
    python_path: Text

    def mistakes(self) -> Mistakes:
        """Yield the labels whose names the outputs of the model cannot have, and a `work_dir` in an object store."""
        if self.work_dir is not None and is_remote(self.work_dir):
            yield "work_dir", f"is {self.work_dir!r}: it must be a folder; `push.destination` may be an address."
        for name in self.labels or ():  # None if another mistake is in the section
            try:
                Task(name=name)
            except ConfigError:
                yield f"labels.{name}", f"is a label named {name!r}: a name must be {NAME_RULE}."

    @property
    def targets(self) -> Mapping[str, Label]:
        """The labels by name; the name of a single one is "label"."""
        return self.labels if self.label is None else {"label": self.label}

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the model is trained for."""
        if self.label is not None:
            return (self.label.task("label", "label"),)
        return tuple(label.task(name, f"label_{name}") for name, label in self.labels.items())

    @property
    def push_destination(self) -> str:
        """The folder of served versions."""
        return self.push.destination or os.path.join(self.work_dir, "serving")

    @property
    def metadata_path(self) -> str:
        """The sqlite file, or the address of the MySQL server, of ML Metadata in local runs."""
        return self.metadata or os.path.join(self.work_dir, "metadata.sqlite")
