"""Trains on two parameter servers and two workers, processes of this machine."""

import pytest

from tests.parameter_server import clusters

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
]  # the campaign `parameter-server`: a cluster takes a minute of CPU


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with clusters.running() as cluster:
        return clusters.run_chief(cluster, folder, "both", epochs=4)


def test_a_step_on_servers_is_a_step_of_the_host_engine(results):
    """One worker at a time: kernels give the same bits, rules in several operations are rounded as in another graph."""
    differing = results["exact"]["differing"]
    by_kernel = ("sgd", "adagrad", "small")
    assert {key: value for key, value in differing.items() if key.startswith(by_kernel) and value} == {}
    assert {key: value for key, value in differing.items() if value > 2e-6} == {}
    assert len(differing) == 8 * 2 + 8 + 10  # features, tables, slots


def test_large_tables_are_on_both_servers_with_slots_beside_rows(results):
    devices = results["exact"]["devices"]
    assert len(set(devices["adam"])) == 2
    assert devices["adam/momenta"] == devices["adam"]
    assert len(devices["small"]) == 1


def test_an_invalid_id_changes_nothing(results):
    bad = results["exact"]["bad_id"]
    assert bad["changed"] == []
    assert "adam" in bad["message"]


def test_training_runs_all_steps_on_all_rows(results):
    facts = results["train"]["facts"]
    assert (facts["train_rows"], facts["eval_rows"]) == (300, 200)
    assert facts["steps_done"] == facts["steps_planned"] == results["train"]["step"] == 4 * facts["steps_per_epoch"]
    assert facts["device"] == "parameter_server"


def test_model_learns_and_has_the_tables_of_the_last_checkpoint(results):
    assert results["train"]["evals"][-1]["auc"] > 0.7
    assert results["train"]["same_as_saved"]
