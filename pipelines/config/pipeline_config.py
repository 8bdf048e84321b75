"""Defines the whole configuration of a pipeline: one class that names every section."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from components.example_gen.row_selection import RowFilter, Split, SplitByHash
from components.example_gen.settings import Columns, Label
from components.pusher.push_section import Push
from embedding_core.config import TableOverrides
from embedding_core.errors import ConfigError
from embedding_core.health.judgement import Health
from embedding_core.rooms import hooks, with_keys
from embedding_core.schema import (
    NAME_RULE,
    ByName,
    Count,
    Json,
    Listed,
    Mistakes,
    Name,
    Positive,
    PositiveNumber,
    Rule,
    Section,
    Text,
)
from embedding_core.storage import is_remote
from embedding_core.tasks import Task
from embedding_core.training_config import Training, WarmStart
from pipelines.config.metrics import Evaluation
from pipelines.config.sections import Data, Features, VocabularyEvolution, VocabularyLimits, is_address

# Declares the section `follow`: how spans are trained as they arrive.


class Follow(Section):
    """How `tfx-embeddings follow` runs the pipeline on spans as they arrive.

    Attributes:
      poll_seconds: seconds from one look for new files to the next.
      spans_per_run: largest number of spans that one run reads; null reads all that have arrived. The first run, which
        starts cold, reads all in either case.
      full_run_every: number of runs from one that analyses its data again, with Transform, to the next. The runs in
        between keep the TransformGraph of the run that they start from, which a push of what changed alone needs.
      keep_runs: number of the newest runs whose artifacts and reports are kept. The files of older ones are removed
        from `work_dir`; their lineage, the pushed versions and the reports of these stay.
      wait_seconds: longest time to wait while another command uses `work_dir`, in seconds; after it, `follow` ends with
        an error that names the process.
    """

    poll_seconds: PositiveNumber = 5.0
    spans_per_run: Positive | None = None
    full_run_every: Positive = 100
    keep_runs: Positive = 20
    wait_seconds: PositiveNumber = 3600.0


# Defines the section `kubeflow`: how the pipeline runs on Kubeflow Pipelines or Vertex AI. Local runs ignore it.


def _address(value: str) -> str:
    if not is_address(value):
        raise ValueError("it must be an address that every task can reach, such as gs://bucket/x.")
    return value


_Uri = Annotated[str, AfterValidator(_address)]
_Chips = Annotated[str, Field(pattern=r"^\d+(x\d+){1,2}$"), Rule("chips such as 2x2 or 2x2x1", text=True)]


class Resources(Section):
    """Resources of a container.

    Attributes:
      cpu: number of CPUs; null leaves it to the backend.
      memory_gb: memory in GB (10^9 bytes); null leaves it to the backend.
    """

    cpu: PositiveNumber | None = None
    memory_gb: PositiveNumber | None = None


@with_keys("kubeflow", hooks("pipelines", "keys"))
class Kubeflow(Section):
    """Settings for Kubeflow Pipelines and Vertex AI, which `tfx-embeddings compile` reads.

    Attributes:
      image: container image with this project installed; see kubeflow/Dockerfile.
      pipeline_root: address below which every task writes its outputs.
      tpu_image: image of the trainer if it runs on a TPU; null uses `image`.
      project: Google Cloud project of the training job, if it needs a TPU or several machines of Vertex.
      region: region of the training job, such as us-central1.
      service_account: account that the training job runs as; null uses the default of Vertex.
      machine_type: machine of the TPU's host; null uses that of `training.topology`.
      tpu_topology: chips as Google Cloud writes them, such as 2x2; null uses that of `training.topology`.
      beam_args: arguments of every Beam node; without any, Beam runs inside the task's container.
      resources: resources of the container, by task ("ExampleGen", "Transform", ...).
    """

    image: Text
    pipeline_root: _Uri
    tpu_image: Text | None = None
    project: Text | None = None
    region: Text | None = None
    service_account: Text | None = None
    machine_type: Text | None = None
    tpu_topology: _Chips | None = None
    beam_args: Listed[Text] = ()
    resources: ByName[Resources] = Field(default_factory=dict)

    def mistakes(self) -> Mistakes:
        """Yield a mistake for every Beam argument that does not start with `--`."""
        for index, argument in enumerate(self.beam_args):
            if not argument.startswith("--"):
                yield f"beam_args.{index}", f"is {argument!r}: it must be one argument such as --runner=DataflowRunner."


# Defines the section `model`: which model is trained, and with which arguments.

BUILT_IN_MODELS = {
    name: f"pipelines.models.{name}"
    for name in ("ranking", "two_tower", "sequential", "dlrm", "deepfm", "final_mlp", "din", "mmoe", "ple")
}

_ARGUMENTS: Mapping[str, Json] = {"ranking": {"first_order": True, "l2": 1e-4}}
"""Defaults of built-in models that differ from those of `build`, which keeps the defaults of earlier releases."""

RETRIEVAL_MODELS = ("two_tower", "sequential")


def _short_name(value: Any) -> Any:
    """Return the name of a model of `pipelines.models` for its dotted path; any other value as it is."""
    return next((name for name, module in BUILT_IN_MODELS.items() if module == value), value)


class Model(Section):
    """The model to train.

    Attributes:
      name: name of a model of `pipelines.models` ("ranking", "two_tower", ...), or the dotted path of your own module
        with a function `build`.
      arguments: keyword arguments of `build`.
      run_fn: dotted path of your own training function, which is called with `fn_args`, as by TFX's Trainer. It uses
        `components.trainer.own_run.TrainerRun`. Null trains by the loop of this project.
    """

    SHORT = "name"

    name: Annotated[Text, BeforeValidator(_short_name)] = "ranking"
    arguments: ByName[Any] = Field(default_factory=dict)
    run_fn: Text | None = None

    @property
    def module(self) -> str:
        """The dotted path of the module with `build`."""
        return BUILT_IN_MODELS.get(self.name, self.name)


@with_keys("", hooks("components", "keys"))
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
      gates: dotted paths of classes of your own that also judge the model before a push.
      warm_start: checkpoint that the model starts from; null starts from initial rows.
      push: destination of the served model.
      follow: how `tfx-embeddings follow` runs the pipeline on spans as they arrive.
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

    PATHS = ("work_dir", "metadata", "python_path")
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
    gates: Listed[Text] = ()
    warm_start: WarmStart | None = None
    push: Push = Field(default_factory=Push)
    follow: Follow = Field(default_factory=Follow)
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
    def sections(self) -> Mapping[str, Section]:
        """The sections that are given, by key."""
        values = {key: getattr(self, key) for key in type(self).model_fields}
        return {key: value for key, value in values.items() if isinstance(value, Section)}

    @property
    def addresses(self) -> Mapping[str, str]:
        """The paths and addresses of the sections that are given, by dotted key."""
        sections = self.sections.items()
        given = {f"{name}.{key}": getattr(section, key) for name, section in sections for key in section.PATHS}
        given["push.destination"] = self.push_destination
        return {key: value for key, value in given.items() if value is not None}

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
    def build_arguments(self) -> Json:
        """The keyword arguments of `build`: `model.arguments`, and a built-in model's defaults for those not given."""
        name = self.model.name
        defaults = dict(_ARGUMENTS.get(name, {}))
        if name in RETRIEVAL_MODELS and self.training.softmax is not None:
            defaults["normalize"] = True
        return {**defaults, **self.model.arguments}

    @property
    def push_destination(self) -> str:
        """The folder of served versions."""
        return self.push.destination or os.path.join(self.work_dir, "serving")

    @property
    def metadata_path(self) -> str:
        """The sqlite file, or the address of the MySQL server, of ML Metadata in local runs."""
        return self.metadata or os.path.join(self.work_dir, "metadata.sqlite")


# Makes the JSON Schema of the configuration, with which editors complete and check YAML files.


def config_schema() -> Json:
    """Return the JSON Schema of the YAML file; its descriptions come from the docstrings of the sections.

    It accepts every file that `tfx-embeddings validate` accepts, and others too: it does not contain the rules that
    involve several keys.
    """
    schema = PipelineConfig.model_json_schema()
    schema["required"] = [key for key in schema["required"] if key not in PipelineConfig.FROM_THE_FILE]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "tfx-embeddings"}


# Names the words that select a previous run, in place of an address.

PUSHED, SERVED, TRAINED, LATEST = "pushed", "served", "trained", "latest"
WORDS = (PUSHED, SERVED, TRAINED, LATEST)
"""The words. Each selects a previous run:

- "pushed": the newest version that was pushed and not rolled back.
- "served": the newest version in the serving folder.
- "trained": the newest finished training, pushed or not.
- "latest": a former name of "trained", which gives a warning; for `evaluation.baseline`, a former name of "pushed".
"""
