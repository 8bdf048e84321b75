"""Defines the section `kubeflow.cluster`: the machines of parameter servers and workers."""

from __future__ import annotations

from embedding_core.schema import Positive, Section, Text
from pipelines.config.pipeline_config import Resources


class TrainingCluster(Section):
    """The CPU machines of `training.strategy: parameter_server`, besides the trainer's own container, the chief.

    This strategy partitions the tables over the servers of the cluster in TF_CONFIG, whose workers train.

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


class ClusterKeys(Section):
    """Keys that the room adds to the section `kubeflow`.

    Attributes:
      cluster: machines of parameter servers and workers; null without them.
    """

    cluster: TrainingCluster | None = None


KEYS = {"kubeflow": ClusterKeys}
