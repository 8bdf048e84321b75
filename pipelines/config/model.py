"""Defines the section `model`: which model is trained, and with which arguments."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from embedding_core.schema import ByName, Section, Text

BUILT_IN_MODELS = {
    name: f"pipelines.models.{name}"
    for name in ("ranking", "two_tower", "sequential", "dlrm", "deepfm", "final_mlp", "din", "mmoe", "ple")
}

_ARGUMENTS = {"ranking": {"first_order": True, "l2": 1e-4}}
"""Defaults of built-in models that differ from those of `build`, which keeps the defaults of earlier releases."""

RETRIEVAL_MODELS = ("two_tower", "sequential")


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

    name: Text = "ranking"
    arguments: ByName[Any] = Field(default_factory=dict)
    run_fn: Text | None = None

    @property
    def build_arguments(self) -> dict[str, Any]:
        """The keyword arguments of `build`: `arguments`, and a built-in model's defaults for those not given."""
        return {**_ARGUMENTS.get(self.name, {}), **self.arguments}

    @property
    def module(self) -> str:
        """The dotted path of the module with `build`."""
        return BUILT_IN_MODELS.get(self.name, self.name)
