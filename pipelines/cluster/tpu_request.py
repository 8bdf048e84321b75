"""Translates the name of a TPU slice to the machines, labels and topologies of Vertex AI and GKE.

The values are from the documentation of Cloud TPU, Vertex AI and GKE on planning TPUs. GKE counts chips; a slice's name
counts cores for v2 to v5p (two in a chip) and chips for v5e and v6e.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from embedding_core.errors import ConfigError
from embedding_core.planning.topology import named_topology


class _Machines(NamedTuple):
    cores_per_chip: int  # by how much one chip raises the number in a slice's name
    machine: Mapping[int, str]  # chips of one host -> machine type
    label: str | None  # value of cloud.google.com/gke-tpu-accelerator; None if GKE does not offer these TPUs
    cube: bool  # whether its topology has three dimensions


_MACHINES: Mapping[str, _Machines] = {
    "v2": _Machines(2, {4: "cloud-tpu"}, None, False),
    "v3": _Machines(2, {4: "ct3-hightpu-4t"}, "tpu-v3-device", False),
    "v4": _Machines(2, {4: "ct4p-hightpu-4t"}, "tpu-v4-podslice", True),
    "v5e": _Machines(1, {chips: f"ct5lp-hightpu-{chips}t" for chips in (1, 4, 8)}, "tpu-v5-lite-podslice", False),
    "v5p": _Machines(2, {4: "ct5p-hightpu-4t"}, "tpu-v5p-slice", True),
    "v6e": _Machines(1, {chips: f"ct6e-standard-{chips}t" for chips in (1, 4, 8)}, "tpu-v6e-slice", False),
}
_VERTEX_TYPES = {"v2": "TPU_V2", "v3": "TPU_V3"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuRequest:
    """A TPU slice in the terms of Vertex AI and GKE.

    Attributes:
      name: name of the slice, such as "v5e-4".
      hosts: number of its machines.
      cores: number of its cores, as the slice's name counts them.
      chips_per_host: number of TPU chips of each machine; the resource `google.com/tpu` on GKE.
      machine_type: machine type of each host.
      topology: arrangement of the chips as GKE and Vertex write it, such as "2x2" or "2x2x1".
      label: GKE's name of the accelerator, or None if GKE does not offer it.
    """

    name: str
    hosts: int
    cores: int
    chips_per_host: int
    machine_type: str
    topology: str
    label: str | None

    def vertex_machine(self) -> dict[str, str | int]:
        """Return the `machine_spec` of a Vertex worker pool.

        Raises:
          ConfigError: the slice has several hosts of v2 or v3, which Vertex does not offer.
        """
        kind = _VERTEX_TYPES.get(self.name.partition("-")[0])
        if kind is None:
            return {"machine_type": self.machine_type, "tpu_topology": self.topology}
        if self.hosts > 1:
            raise ConfigError(
                f"`training.topology` is {self.name!r}: Vertex AI names no accelerator for more than one host of "
                "v2 or v3; take v3-8, or a slice of v4, v5e, v5p or v6e."
            )
        return {"machine_type": "cloud-tpu", "accelerator_type": kind, "accelerator_count": self.cores}

    def node_selector(self) -> dict[str, str]:
        """Return the labels of GKE's node pool for this slice.

        Raises:
          ConfigError: GKE does not offer these TPUs, or the slice has several hosts.
        """
        if self.label is None:
            raise ConfigError(f"`training.topology` is {self.name!r}: GKE has no such nodes; take v3 or later.")
        if self.hosts > 1:
            raise ConfigError(
                f"`training.topology` is {self.name!r}, {self.hosts} hosts: a task of Kubeflow Pipelines is one pod, "
                "so one host; take a slice of one host, or compile for vertex."
            )
        labels = {"cloud.google.com/gke-tpu-accelerator": self.label}
        if self.chips_per_host > 1:
            labels["cloud.google.com/gke-tpu-topology"] = self.topology
        return labels


def tpu_request(name: str, *, machine_type: str | None = None, topology: str | None = None) -> TpuRequest:
    """Return the request for a slice, and check that the settings of `kubeflow` agree with it.

    Args:
      name: name of the slice, as in `training.topology`.
      machine_type: `kubeflow.machine_type`, which must be that of the slice; None is not checked.
      topology: `kubeflow.tpu_topology`, which must be that of the slice. None takes the default arrangement, which
        exists only if the number of chips is a power of two.

    Raises:
      ConfigError: the slice is unknown or needs a topology, or `machine_type` or `topology` contradicts it.
    """
    slice_ = named_topology(name)
    generation, _, size = slice_.name.replace("v5litepod", "v5e").partition("-")
    machines = _MACHINES[generation]
    chips = int(size) // machines.cores_per_chip
    per_host = chips // slice_.hosts
    dimensions = 3 if machines.cube else 2
    if chips & (chips - 1):
        arrangement = _given_topology(slice_.name, chips, dimensions, topology)
    else:
        arrangement = _default_topology(chips, dimensions)
    request = TpuRequest(
        name=f"{generation}-{size}",
        hosts=slice_.hosts,
        cores=int(size),
        chips_per_host=per_host,
        machine_type=machines.machine[per_host],
        topology=arrangement,
        label=machines.label,
    )
    _check_same(request, machine_type, topology)
    return request


def _default_topology(chips: int, dimensions: int) -> str:
    """Return the topology of 2**n chips: sides as equal as possible, shorter ones first (except 2x2x1)."""
    if dimensions == 3 and chips == 4:
        return "2x2x1"
    sides = [1] * dimensions
    for step in range(chips.bit_length() - 1):
        sides[dimensions - 1 - step % dimensions] *= 2
    return "x".join(map(str, sides))


def _given_topology(name: str, chips: int, dimensions: int, given: str | None) -> str:
    """Return the given topology, and check it: this number of chips can be arranged in several ways."""
    if given is None or math.prod(given_sides := _sides(given)) != chips or len(given_sides) != dimensions:
        raise ConfigError(
            f"`training.topology` is {name!r}, {chips} chips, which can be arranged in several ways: set "
            f"`kubeflow.tpu_topology` to {dimensions} numbers whose product is {chips}, as Google Cloud lists them."
        )
    return given


def _sides(topology: str) -> list[int]:
    return sorted(int(side) for side in re.findall(r"\d+", topology))


def _check_same(request: TpuRequest, machine_type: str | None, topology: str | None) -> None:
    if topology is not None and _sides(topology) != _sides(request.topology):
        raise ConfigError(
            f"`kubeflow.tpu_topology` is {topology!r}, but `training.topology` {request.name!r} is {request.topology}: "
            "leave it out, or correct one of the two."
        )
    machines = {request.machine_type, *(["cloud-tpu"] if request.name.partition("-")[0] in _VERTEX_TYPES else [])}
    if machine_type is not None and machine_type not in machines:
        raise ConfigError(
            f"`kubeflow.machine_type` is {machine_type!r}, but the hosts of `training.topology` {request.name!r} are "
            f"{request.machine_type!r}: leave it out, or correct one of the two."
        )
