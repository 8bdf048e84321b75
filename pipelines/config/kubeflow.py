"""The section that says how the pipeline runs on Kubeflow Pipelines or Vertex AI; a laptop reads none of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pipelines.config.data import Text
from pipelines.config.paths import is_address
from pipelines.config.reading import Rule

__all__ = ["Kubeflow", "Resources"]

_Amount = Annotated[float, Rule(lambda value: value > 0, "a number above 0")]
_Uri = Annotated[str, Rule(is_address, "an address that every task can reach, such as gs://bucket/x")]
_Chips = Annotated[str, Rule(lambda value: bool(re.fullmatch(r"\d+(x\d+){1,2}", value)), "chips such as 2x2 or 2x2x1")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    """What the container of one task is given.

    Attributes:
      cpu: number of CPUs; null leaves it to the backend.
      memory_gb: memory in GB (10^9 bytes); null leaves it to the backend.
    """

    cpu: _Amount | None = None
    memory_gb: _Amount | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kubeflow:
    """Where `tfx-embeddings compile` lets the pipeline run.

    Attributes:
      image: container image with this project installed, see kubeflow/Dockerfile.
      pipeline_root: address below which every task writes its outputs.
      tpu_image: image of the trainer where it runs on a TPU; null is `image`.
      project: Google Cloud project of the training job (Vertex with a TPU).
      region: its region, such as us-central1.
      service_account: that the training job runs as; null is Vertex's own.
      machine_type: machine of the TPU's host; null is that of `training.topology`.
      tpu_topology: chips as Google Cloud writes them, such as 2x2; null is that of `training.topology`.
      beam_args: arguments of every Beam node; none runs Beam inside the task's own container.
      resources: by task ("ExampleGen", "Transform", ...) what its container is given.
    """

    image: Text
    pipeline_root: _Uri
    tpu_image: Text | None = None
    project: Text | None = None
    region: Text | None = None
    service_account: Text | None = None
    machine_type: Text | None = None
    tpu_topology: _Chips | None = None
    beam_args: tuple[Text, ...] = ()
    resources: Mapping[str, Resources] = dataclasses.field(default_factory=dict)

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """The rules over several fields."""
        for index, argument in enumerate(self.beam_args):
            if not argument.startswith("--"):
                yield f"beam_args.{index}", f"is {argument!r}: it must be one argument such as --runner=DataflowRunner."
