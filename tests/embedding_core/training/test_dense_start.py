"""A second run starts from the tables and the dense part of the first, through an embedding checkpoint."""

import dataclasses
import json
import re

import pytest

from embedding_core.checkpoint import latest_training_checkpoint, load_checkpoint_into, remap, retrieve, verify
from embedding_core.checkpoint.dense import read_dense
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.optimizers import Adagrad
from embedding_core.tasks import POSITIVE, Task
from embedding_core.training import dense_start, train
from embedding_core.training.dense_start import dense_inputs, start_dense
from embedding_core.training.step import new_trainable
from embedding_core.training_config import DenseStart
from tests.support.training_jobs import WORDS, job_in, state_of
from tests.support.vocabularies import vocabulary_of

RANGES = {"number": {"column": "number", "log1p": False, "mean": 0.0, "deviation": 1.0, "limit": 100.0}}
OTHER_RANGES = {"number": {**RANGES["number"], "mean": 0.5}}
VOCABULARY = vocabulary_of([word.encode() for word in WORDS[:-1]], "word", total_count=99, distinct=8)


def job(folder, **changes):
    return dataclasses.replace(
        job_in(folder, table={"optimizer": Adagrad(learning_rate=0.2)}), ranges=RANGES, **changes
    )


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """The folder of a first day, its result, and the embedding checkpoint that the second starts from."""
    folder = tmp_path_factory.mktemp("days")
    first = job(folder)
    result = train(first, str(folder / "first"))
    retrieved, loaded = folder / "retrieved", folder / "loaded"
    checkpoint = latest_training_checkpoint(folder / "first/checkpoints")
    config, known = first.inputs.config, {"word": VOCABULARY}
    retrieve(checkpoint, config, retrieved, vocabularies=known, dense=str(folder / "first/dense"))
    remap(retrieved, config, known, loaded)
    return folder, result, loaded


def second(days, destination, *, training=None, **choices):
    """Run the second day on the same rows; return its result and its report of what was restored."""
    folder, _, loaded = days
    again = job(folder, dense_start=DenseStart(folder=str(loaded / "dense"), **choices))

    def fill(variables):
        digests = {"word": VOCABULARY.digest}
        load_checkpoint_into(loaded, variables, again.inputs.config, vocabulary_digests=digests)

    changed = again.training.replace(epochs=1, **(training or {}))
    result = train(dataclasses.replace(again, warm_start=fill, training=changed), str(destination))
    return result, result.history.facts["warm_start"]


def report_of(days, *, changes=None, folder=None, **choices):
    """Start the dense part of the second day, with some changes of its job, and return the report."""
    again = dataclasses.replace(job(days[0]), **(changes or {}))
    inputs, training = again.inputs, again.training
    model = {"model": again.model, "arguments": again.arguments, "dense": inputs.dense, "tasks": inputs.tasks}
    trainable = new_trainable(inputs.config, training, **model, rows=32, steps=10, replicated=False)
    start, optimizer = DenseStart(folder=str(folder or days[2] / "dense"), **choices), training.dense_optimizer.name
    return start_dense(start, trainable, inputs=dense_inputs(inputs), ranges=again.ranges, optimizer=optimizer)


def test_second_day_starts_at_the_last_evaluation_of_the_first(days, tmp_path):
    result, said = second(days, tmp_path / "second")
    begun, ended = result.history.evals[0], days[1].history.evals[-1]
    assert (begun["step"], begun["loss"], begun["auc"]) == (0, ended["loss"], ended["auc"])
    assert (said["dense"], said["optimizer"], said["ranges"]) == ("restored", "restored", {"number": "kept"})
    assert len(said["variables"]) == len(days[1].model.weights) > 2
    iterations = "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE"
    assert state_of(result)[iterations] == state_of(days[1])[iterations] + result.step
    assert json.loads((tmp_path / "second/history.json").read_text())["facts"]["warm_start"] == said


def test_dense_part_or_its_optimizer_alone_can_be_reset(days):
    said = report_of(days, dense="reset")
    assert (said["dense"], said["dense_reason"]) == ("new", "`warm_start.dense` is reset")
    said = report_of(days, dense_optimizer="reset")
    assert (said["dense"], said["optimizer"]) == ("restored", "new")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"arguments": {"hidden_units": [9], "cross_layers": 0}},
            r"dense/kernel is \[5, 9\], \[5, 8\] in the checkpoint",
        ),
        ({"arguments": {"hidden_units": [8, 8], "cross_layers": 0}}, "is not in the checkpoint"),
        ({"ranges": OTHER_RANGES}, "scaled by other ranges: number"),
    ],
)
def test_difference_is_named_and_nothing_restored_or_all_refused(days, changes, reason):
    said = report_of(days, changes=changes)
    assert (said["dense"], said["optimizer"], said["variables"]) == ("new", "new", [])
    assert re.search(reason, said["dense_reason"])
    with pytest.raises(CheckpointError, match=reason):
        report_of(days, changes=changes, dense="require")


def with_combiner(inputs):
    (table,) = inputs.config.tables
    config = inputs.config.replace(tables=(table.replace(combiner="sum"),))
    return dataclasses.replace(inputs, config=config)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda inputs: dataclasses.replace(inputs, tasks=[Task(kind="count")]), "tasks: .*'count'.*'binary'"),
        (lambda inputs: dataclasses.replace(inputs, tasks=[Task(source="column 'x'")]), "tasks: .*column 'x'.*None"),
        (with_combiner, "combiners: .*'sum'.*'mean'"),
    ],
    ids=["kind", "source", "combiner"],
)
def test_other_meaning_of_labels_or_rows_is_named(days, change, reason):
    said = report_of(days, changes={"inputs": change(job(days[0]).inputs)})
    assert (said["dense"], said["optimizer"]) == ("new", "new")
    assert re.fullmatch(f"the model has other {reason}.* in the checkpoint", said["dense_reason"])


def test_order_of_labels_matters_but_not_the_loss_of_one(tmp_path):
    inputs = job(tmp_path).inputs
    squared, huber = (Task(name="price", kind="regression", loss=loss) for loss in ("squared", "huber"))
    orders = ([squared, POSITIVE], [huber, POSITIVE], [POSITIVE, squared])
    described = [dense_inputs(dataclasses.replace(inputs, tasks=tasks)) for tasks in orders]
    assert described[0] == described[1] != described[2]


def test_dense_part_without_record_of_labels_says_so(days, tmp_path, monkeypatch, caplog):
    """As releases up to 0.2.0 wrote it."""

    def read_earlier(folder):
        saved = read_dense(folder)
        return saved._replace(inputs={key: saved.inputs[key] for key in ("features", "dense")})

    monkeypatch.setattr(dense_start, "read_dense", read_earlier)
    _, said = second(days, tmp_path / "second", dense="require")
    assert (said["dense"], said["not_recorded"]) == ("restored", ["combiners", "tasks"])
    assert "does not record its combiners and tasks" in caplog.text


def test_other_ranges_are_accepted_by_choice(days):
    said = report_of(days, changes={"ranges": OTHER_RANGES}, ranges="recompute")
    assert (said["dense"], said["ranges"]) == ("restored", {"number": "measured"})


def test_another_optimizer_starts_from_its_own_state(days):
    said = report_of(days, changes={"training": job(days[0]).training.replace(dense_optimizer="nadam")})
    assert (said["dense"], said["optimizer_reason"]) == ("restored", "the optimizer is nadam, adam in the checkpoint")


def test_linear_decay_follows_the_steps_of_the_second_day(days, tmp_path):
    """The optimizer's counter continues from the first day: a decay that followed it would start at a rate of 0."""
    result, _ = second(days, tmp_path / "second", training={"decay": "linear"})
    before, after = (state_of(run) for run in (days[1], result))
    changed = [key for key, value in after.items() if key.startswith("model/") and (value != before[key]).any()]
    assert changed


def test_checkpoint_without_a_dense_part_starts_a_new_one(days, tmp_path):
    assert "has no dense part" in report_of(days, folder=tmp_path / "none")["dense_reason"]


def test_dense_part_is_sealed_in_the_checkpoint(days):
    assert {"dense/manifest.json", "dense/variables.index"} <= set(verify(days[2]).files)
    part = read_dense(str(days[2] / "dense"))
    assert part is not None
    assert part.ranges == RANGES


def test_choice_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="`dense` of dense start is 'some'"):
        DenseStart(folder="x", dense="some")
