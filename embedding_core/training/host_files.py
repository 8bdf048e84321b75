"""Which files each host of a slice reads, where every host reads files of its own.

On a TPU of several hosts one process drives all of them, and the input of each is read on that host. Host h of n gets
the files h, h + n, h + 2n, ... in order of their names, and gives 1/n of every global batch. Hosts need not have
equally many rows: an epoch lasts until the last one is through, and a host that is through gives empty rows, of weight
0. So each row is seen once in an epoch, and the mean of a batch is over the rows that it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from embedding_core.errors import ConfigError, DataError
from embedding_core.training.training_inputs import Inputs

_log = logging.getLogger(__name__)
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


class HostRows(NamedTuple):
    """What one host reads.

    Attributes:
      files: of its own, sorted.
      rows: in them.
    """

    files: tuple[str, ...]
    rows: int


def shares_of(files: Sequence[str], rows: Sequence[int], hosts: int, split: str, *, must: bool) -> list[HostRows]:
    """What each host reads, or nothing where each has to read everything.

    Args:
      files: TFRecord files.
      rows: of each of them.
      hosts: how many there are.
      split: its name, for the error.
      must: whether fewer files than hosts are an error; else all hosts read all files.

    Raises:
      DataError: fewer files than hosts, where that is an error.
    """
    if len(files) < hosts:
        found = f"the {split} split has {len(files)} files for {hosts} hosts"
        if must:
            raise DataError(
                f"{found}, but `shard_files` is true: every host reads files of its own; write at least {hosts} files, "
                "or leave `shard_files` out."
            )
        _log.warning("%s: every host reads all of them; %d files or more are read faster", found, hosts)
        return []
    sized = sorted(zip(files, rows, strict=True))
    own = [sized[host::hosts] for host in range(hosts)]
    return [HostRows(tuple(name for name, _ in part), sum(count for _, count in part)) for part in own]


def check_batch(batch_size: int, hosts: int) -> None:
    """Check that every host can give the same part of a global batch.

    Raises:
      ConfigError: it cannot.
    """
    rest = batch_size % hosts
    if rest:
        raise ConfigError(
            f"`batch_size` is {batch_size}: each of {hosts} hosts reads an equal part of it; write "
            f"{batch_size - rest or hosts} or {batch_size - rest + hosts}."
        )


def refuse_what_is_local(files: Sequence[str]) -> None:
    """Refuse paths that mean another file on every host.

    Raises:
      ConfigError: a path that is no address.
    """
    local = [name for name in files if "://" not in name]
    if local:
        raise ConfigError(
            f"{local[0]!r} is a path of this machine, but the TPU has several hosts, each of which opens the file "
            "itself: put the data, the vocabularies and the pipeline's root at an address such as gs://bucket/folder."
        )


def bound_to_one_process(transform: Callable[[dict[str, Any]], Any], spec: Mapping[str, Any]) -> Iterator[str]:
    """What of the transform of parsed columns works in the coordinator's process alone, in words.

    A dataset's functions run on the hosts: Python code is not there, nor is a lookup table or variable that was made in
    another place.

    Args:
      transform: as `Inputs.transform`.
      spec: how its columns are read, as `Inputs.raw_spec`.
    """

    def parse(serialized: tf.Tensor) -> Any:
        return transform(tf.io.parse_example(serialized, dict(spec)))

    graph = tf.function(parse).get_concrete_function(tf.TensorSpec([None], tf.string)).graph
    kinds = {operation.type for operation in graph.get_operations()}
    kinds |= {node.op for function in graph.as_graph_def().library.function for node in function.node_def}
    if kinds & _PYTHON:
        yield "calls Python (tf.py_function or tf.numpy_function)"
    if any(captured.dtype in (tf.resource, tf.variant) for captured in graph.external_captures):
        yield "holds a lookup table or a variable"


def check_input_of_hosts(files: Sequence[str], inputs: Inputs) -> None:
    """Check that every host can read and transform its rows by itself.

    Raises:
      ConfigError: naming what is bound to one machine or process.
    """
    refuse_what_is_local([*files, *inputs.vocabularies.values()])
    if inputs.transform is None:
        return
    for bound in bound_to_one_process(inputs.transform, inputs.raw_spec):
        raise ConfigError(
            f"the transform of columns {sorted(inputs.raw_spec)} {bound}: it runs on every host of the TPU, where that "
            "is not; leave tokens to the features' own vocabularies, and compute the rest with TensorFlow's operations."
        )
