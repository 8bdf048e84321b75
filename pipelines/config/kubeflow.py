"""Defines the section `kubeflow`: how the pipeline runs on Kubeflow Pipelines or Vertex AI. Local runs ignore it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from embedding_core.schema import ByName, Listed, Mistakes, Positive, PositiveNumber, Rule, Section, Text
from pipelines.config.paths import is_address


def _address(value: str) -> str:
    if not is_address(value):
        raise ValueError("it must be an address that every task can reach, such as gs://bucket/x.")
    return value


_Uri = Annotated[str, AfterValidator(_address)]
_Chips = Annotated[str, Field(pattern=r"^\d+(x\d+){1,2}$"), Rule("chips such as 2x2 or 2x2x1", text=True)]


class Resources(Section):
    """Resources of the container of one task.

    Attributes:
      cpu: number of CPUs; null leaves it to the backend.
      memory_gb: memory in GB (10^9 bytes); null leaves it to the backend.
    """

    cpu: PositiveNumber | None = None
    memory_gb: PositiveNumber | None = None


class TrainingCluster(Section):
    """The CPU machines of `training.strategy: parameter_server`, besides the trainer's own container, the chief.

    Attributes:
      workers: number of workers.
      servers: number of parameter servers, over which tables are partitioned.
      machine_type: machine of the chief, each worker and each server on Vertex AI.
      worker: resources of each worker on Kubernetes.
      server: resources of each server on Kubernetes.
    """

    workers: Positive = 2
    servers: Positive = 2
    machine_type: Text = "n2-highmem-8"
    worker: Resources = Resources()
    server: Resources = Resources()


class Kubeflow(Section):
    """Settings for Kubeflow Pipelines and Vertex AI, which `tfx-embeddings compile` reads.

    Attributes:
      image: container image with this project installed; see kubeflow/Dockerfile.
      pipeline_root: address below which every task writes its outputs.
      tpu_image: image of the trainer if it runs on a TPU; null uses `image`.
      project: Google Cloud project of the training job (Vertex with a TPU or a cluster).
      region: region of the training job, such as us-central1.
      service_account: account that the training job runs as; null uses the default of Vertex.
      machine_type: machine of the TPU's host; null uses that of `training.topology`.
      tpu_topology: chips as Google Cloud writes them, such as 2x2; null uses that of `training.topology`.
      beam_args: arguments of every Beam node; without any, Beam runs inside the task's container.
      cluster: machines of parameter servers and workers; null without them.
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
    cluster: TrainingCluster | None = None
    resources: ByName[Resources] = Field(default_factory=dict)

    def mistakes(self) -> Mistakes:
        """Yield a mistake for every Beam argument that does not start with `--`."""
        for index, argument in enumerate(self.beam_args):
            if not argument.startswith("--"):
                yield f"beam_args.{index}", f"is {argument!r}: it must be one argument such as --runner=DataflowRunner."
