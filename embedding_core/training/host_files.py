"""Assigns files to the hosts of a slice, so that each host reads different files.

On a TPU of several hosts one process drives all of them, and each host reads its own input. Host h of n gets
the files h, h + n, h + 2n, ... in the order of their names, and gives 1/n of every global batch. Hosts may have
different numbers of rows: an epoch lasts until the last host has read its rows, and the others then give empty rows of
weight 0. So each row is seen once per epoch, and the mean of a batch is over its real rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from embedding_core.columns.raw_columns import Spec
from embedding_core.columns.tokens import Values
from embedding_core.errors import ConfigError, DataError
from embedding_core.storage import is_remote
from embedding_core.training.training_inputs import Inputs, Transform

_log = logging.getLogger(__name__)
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


class HostRows(NamedTuple):
    """The files of one host.

    Attributes:
      files: sorted paths.
      rows: number of rows in these files.
    """

    files: tuple[str, ...]
    rows: int


def files_by_host(files: Sequence[str], rows: Sequence[int], hosts: int, split: str, *, must: bool) -> list[HostRows]:
    """Assign files to hosts.

    Args:
      files: TFRecord files.
      rows: number of rows of each file.
      hosts: number of hosts.
      split: name of the split, for messages.
      must: whether fewer files than hosts are an error; else all hosts read all files.

    Returns:
      The files of each host; empty if every host has to read all of them.

    Raises:
      DataError: there are fewer files than hosts, and `must` is true.
    """
    if len(files) < hosts:
        few = f"the {split} split has {len(files)} files for {hosts} hosts"
        if must:
            raise DataError(
                f"{few}, but `shard_files` is true: every host reads different files; write at least {hosts} files, "
                "or leave `shard_files` out."
            )
        _log.warning("%s: every host reads all of them; %d files or more are read faster", few, hosts)
        return []
    sized = sorted(zip(files, rows, strict=True))
    parts = [sized[host::hosts] for host in range(hosts)]
    return [HostRows(tuple(name for name, _ in part), sum(count for _, count in part)) for part in parts]


def check_batch(batch_size: int, hosts: int) -> None:
    """Check that all hosts can give equal parts of a global batch.

    Raises:
      ConfigError: `batch_size` is not a multiple of `hosts`.
    """
    rest = batch_size % hosts
    if rest:
        raise ConfigError(
            f"`batch_size` is {batch_size}: each of {hosts} hosts reads an equal part of it; write "
            f"{batch_size - rest or hosts} or {batch_size - rest + hosts}."
        )


def refuse_local_paths(files: Sequence[str]) -> None:
    """Refuse local paths, which name a different file on every host.

    Raises:
      ConfigError: a path is not an address of an object store.
    """
    local = [name for name in files if not is_remote(name)]
    if local:
        raise ConfigError(
            f"{local[0]!r} is a path of this machine, but the TPU has several hosts, each of which opens the file "
            "itself: put the data, the vocabularies and the pipeline's root at an address such as gs://bucket/folder."
        )


def bound_to_one_process(transform: Transform, spec: Mapping[str, Spec]) -> Iterator[str]:
    """Yield, in words, what in a transform works only in the coordinator's process.

    The functions of a dataset run on the hosts, which have neither the coordinator's Python code nor its lookup tables
    and variables.

    Args:
      transform: as `Inputs.transform`.
      spec: specification of its columns, as `Inputs.raw_spec`.
    """

    def parse(serialized: tf.Tensor) -> Mapping[str, Values]:
        return transform(tf.io.parse_example(serialized, dict(spec)))

    graph = tf.function(parse).get_concrete_function(tf.TensorSpec([None], tf.string)).graph
    kinds = {operation.type for operation in graph.get_operations()}
    kinds |= {node.op for function in graph.as_graph_def().library.function for node in function.node_def}
    if kinds & _PYTHON:
        yield "calls Python (tf.py_function or tf.numpy_function)"
    if any(captured.dtype in (tf.resource, tf.variant) for captured in graph.external_captures):
        yield "holds a lookup table or a variable"


def check_input_of_hosts(files: Sequence[str], inputs: Inputs) -> None:
    """Check that every host can read and transform its rows.

    Raises:
      ConfigError: a path or the transform is bound to one machine or process.
    """
    refuse_local_paths([*files, *inputs.vocabularies.values()])
    refuse_bound_transform(inputs, "every host of the TPU")


def refuse_bound_transform(inputs: Inputs, runs_on: str) -> None:
    """Refuse a transform that is bound to one process.

    Args:
      inputs: the inputs with the transform.
      runs_on: where the transform runs, for the message.

    Raises:
      ConfigError: the transform calls Python, or holds a lookup table or a variable.
    """
    if inputs.transform is None:
        return
    for bound in bound_to_one_process(inputs.transform, inputs.raw_spec):
        raise ConfigError(
            f"the transform of columns {sorted(inputs.raw_spec)} {bound}: it runs on {runs_on}, which does not have "
            "that; use the features' vocabularies for tokens, and TensorFlow's operations for the rest."
        )
