import pytest

from embedding_core.errors import ConfigError
from pipelines.cluster.compile_checks import tpu_request

pytestmark = pytest.mark.light


@pytest.mark.parametrize(
    ("name", "machine", "topology", "chips"),
    [
        ("v3-8", "ct3-hightpu-4t", "2x2", 4),
        ("v4-8", "ct4p-hightpu-4t", "2x2x1", 4),
        ("v4-32", "ct4p-hightpu-4t", "2x2x4", 4),
        ("v5e-1", "ct5lp-hightpu-1t", "1x1", 1),
        ("v5e-8", "ct5lp-hightpu-8t", "2x4", 8),
        ("v5e-16", "ct5lp-hightpu-4t", "4x4", 4),
        ("v6e-4", "ct6e-standard-4t", "2x2", 4),
    ],
)
def test_slice_becomes_machine_topology_and_chips(name, machine, topology, chips):
    request = tpu_request(name)
    assert (request.machine_type, request.topology, request.chips_per_host) == (machine, topology, chips)


def test_old_generations_are_asked_of_vertex_by_accelerator():
    wanted = {"machine_type": "cloud-tpu", "accelerator_type": "TPU_V3", "accelerator_count": 8}
    assert tpu_request("v3-8").vertex_machine() == wanted


def test_one_chip_is_asked_of_gke_without_a_topology():
    assert set(tpu_request("v5e-1").node_selector()) == {"cloud.google.com/gke-tpu-accelerator"}


@pytest.mark.parametrize(("name", "words"), [("v2-8", "no such nodes"), ("v5e-16", "one pod")])
def test_slice_that_gke_or_a_task_cannot_have_is_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        tpu_request(name).node_selector()


def test_slice_that_vertex_cannot_have_is_refused():
    with pytest.raises(ConfigError, match="more than one host"):
        tpu_request("v3-32").vertex_machine()


@pytest.mark.parametrize("said", [{"machine_type": "ct5lp-hightpu-8t"}, {"topology": "2x4"}])
def test_what_is_said_twice_must_agree(said):
    with pytest.raises(ConfigError, match="correct one of the two"):
        tpu_request("v5e-4", **said)


@pytest.mark.parametrize(("name", "topology"), [("v4-24", "2x2x3"), ("v5e-12", "3x4")])
def test_number_of_chips_not_a_power_of_two_needs_its_topology(name, topology):
    assert tpu_request(name, topology=topology).topology == topology
    for wrong in (None, "2x2x2", "12", "4x4"):
        with pytest.raises(ConfigError, match=r"12 chips, .*set `kubeflow.tpu_topology` to [23] numbers"):
            tpu_request(name, topology=wrong)
