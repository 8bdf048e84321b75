"""Trains on the parameter servers and workers that TF_CONFIG names, or serves as one of them."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from embedding_core.errors import ConfigError
from embedding_core.parameter_server.engine import RowPartitioner
from embedding_core.parameter_server.server_steps import ServedTrainable, ServerData, lost_servers
from embedding_core.training.device_choice import Placement
from embedding_core.training_config import TrainingConfig

_log = logging.getLogger(__name__)
_NAME = "parameter_server"  # the value of `training.strategy`
_VARIABLE = "TF_CONFIG"
_CHIEF, _WORKER, _SERVER = "chief", "worker", "ps"
_LAST_PORT = 65535
_EXAMPLE = (
    '{"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"], "ps": ["10.0.0.3:2222"]}, '
    '"task": {"type": "chief", "index": 0}}'
)


class ServerPlacement(Placement):
    """Parameter servers, which hold the tables, and workers, which read the rows and train."""

    @property
    def in_process(self) -> bool:
        """See `Placement`."""
        return False

    @property
    def loop_classes(self) -> tuple[type[ServerData], type[ServedTrainable]]:
        """See `Placement`."""
        return ServerData, ServedTrainable

    @property
    def not_for_keras(self) -> str:
        """See `Placement`."""
        return "a cluster of parameter servers"

    @contextlib.contextmanager
    def scope(self, checkpoints: str | None = None) -> Iterator[None]:
        """See `Placement`."""
        with lost_servers(checkpoints), self.strategy.scope():
            yield


def choose_placement(training: TrainingConfig) -> ServerPlacement | None:
    """Connect to the cluster of TF_CONFIG as its chief; None for another strategy.

    Raises:
      ConfigError: TF_CONFIG is missing or invalid, or this process is not the chief.
    """
    return ServerPlacement(_NAME, parameter_server_strategy()) if training.strategy == _NAME else None


class ClusterTask(NamedTuple):
    """This process in its cluster.

    Attributes:
      cluster: addresses, host:port, by the kind of task: "chief" (one), "worker" and "ps".
      kind: kind of this task.
      number: number of this task among those of its kind.
    """

    cluster: Mapping[str, Sequence[str]]
    kind: str
    number: int

    @property
    def serves(self) -> bool:
        """Whether this is a worker or a parameter server, which waits for the chief's calls."""
        return self.kind in (_WORKER, _SERVER)


def cluster_task() -> ClusterTask | None:
    """Read the environment variable TF_CONFIG; None if it is not set, or names no cluster.

    Raises:
      ConfigError: it is not a cluster of one chief, workers and parameter servers.
    """
    text = os.environ.get(_VARIABLE, "")
    if not text.strip():
        return None
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{_VARIABLE} is not JSON ({error}): write it as {_EXAMPLE}.") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{_VARIABLE} is {text!r}: write an object, as in {_EXAMPLE}.")
    if not given.get("cluster"):
        return None
    return _checked(given["cluster"], given.get("task"))


def _checked(cluster: Any, task: Any) -> ClusterTask:
    if not isinstance(cluster, dict) or not all(_is_addresses(value) for value in cluster.values()):
        raise ConfigError(
            f"`cluster` of {_VARIABLE} is {cluster!r}: write lists of host:port with ports from 1 to 65535, as in "
            f"{_EXAMPLE}."
        )
    if not isinstance(task, dict) or not isinstance(task.get("type"), str) or task["type"] not in cluster:
        raise ConfigError(f"`task` of {_VARIABLE} is {task!r}: `type` must be one of {', '.join(sorted(cluster))}.")
    kind, index = task["type"], task.get("index", 0)
    if type(index) is not int or not 0 <= index < len(cluster[kind]):
        raise ConfigError(
            f"`task.index` of {_VARIABLE} is {index!r}: there are {len(cluster[kind])} tasks of the kind {kind!r}, "
            "numbered from 0."
        )
    return ClusterTask(cluster, kind, index)


def _is_addresses(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(address, str) and _is_address(address) for address in value)


def _is_address(text: str) -> bool:
    """Return whether the text is host:port; gRPC would take a port above 65535 modulo 65536."""
    found = re.fullmatch(r".+:(\d{1,5})", text)
    return found is not None and 1 <= int(found[1]) <= _LAST_PORT


def _as_chief() -> ClusterTask:
    """Return the task of the trainer's process.

    Raises:
      ConfigError: TF_CONFIG is missing, has no chief, no worker or no parameter server, or names another task.
    """
    task = cluster_task()
    if task is None:
        raise ConfigError(
            f"`strategy` is {_NAME!r}, but the environment variable TF_CONFIG names no cluster: set it to the "
            f"addresses of all tasks, such as {_EXAMPLE}; or choose `strategy` cpu."
        )
    for kind, what in ((_WORKER, "worker"), (_SERVER, "parameter server")):
        if not task.cluster.get(kind):
            raise ConfigError(
                f"the cluster of {_VARIABLE} has no {what}: list the addresses of at least one under {kind!r}; it has "
                f"{', '.join(sorted(task.cluster))}."
            )
    if len(task.cluster.get(_CHIEF, ())) != 1:
        raise ConfigError(
            f"the cluster of {_VARIABLE} has {len(task.cluster.get(_CHIEF, ()))} tasks under 'chief': list the address "
            "of this process there, at which workers and parameter servers reach it."
        )
    _check_kinds(task.cluster)
    if task.kind != _CHIEF:
        raise ConfigError(
            f"{_VARIABLE}'s task is {task.kind!r}, but only the chief runs the trainer; start workers and parameter "
            "servers with `python -m embedding_core.parameter_server.worker`."
        )
    return task


def _check_kinds(cluster: Mapping[str, Sequence[str]]) -> None:
    unknown = sorted(set(cluster) - {_CHIEF, _WORKER, _SERVER, "evaluator"})
    if unknown:
        raise ConfigError(
            f"the cluster of {_VARIABLE} has {unknown[0]!r}: tasks must be chief, worker or ps; remove {unknown[0]!r}."
        )


def _spec(cluster: Mapping[str, Sequence[str]]) -> tf.train.ClusterSpec:
    kinds = (_CHIEF, _WORKER, _SERVER)
    return tf.train.ClusterSpec({kind: list(cluster[kind]) for kind in kinds if cluster.get(kind)})


@functools.cache
def _connected(addresses: str) -> tf.distribute.ParameterServerStrategy:
    """Connect to a cluster, given as JSON; a process connects only once."""
    cluster = json.loads(addresses)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        _spec(cluster), task_type=_CHIEF, task_id=0, rpc_layer="grpc"
    )
    _log.info("connecting to %d workers and %d parameter servers", len(cluster[_WORKER]), len(cluster[_SERVER]))
    partitioner = RowPartitioner(len(cluster[_SERVER]))
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def parameter_server_strategy() -> tf.distribute.ParameterServerStrategy:
    """Connect to the cluster of TF_CONFIG as its chief.

    Raises:
      ConfigError: TF_CONFIG is missing or invalid, or this process is not the chief.
    """
    return _connected(json.dumps(_as_chief().cluster))


def serve(task: ClusterTask) -> None:
    """Serve as a worker or a parameter server until the process is ended.

    Raises:
      ConfigError: the cluster has unknown tasks, or the server cannot listen at its address.
    """
    _check_kinds(task.cluster)
    address = task.cluster[task.kind][task.number]
    try:
        server = tf.distribute.Server(_spec(task.cluster), job_name=task.kind, task_index=task.number, protocol="grpc")
    except tf.errors.OpError as error:
        raise ConfigError(
            f"{task.kind} {task.number} of {_VARIABLE} cannot listen at {address} ({error.message}): end the process "
            "that uses the port, or name another address."
        ) from error
    _log.info("%s %d serves at %s", task.kind, task.number, address)
    server.join()
