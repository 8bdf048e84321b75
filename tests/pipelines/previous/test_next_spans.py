"""Tests which spans `follow` trains on next."""

import dataclasses
import json
import os
import shutil

import pytest

from components.example_gen.data_files import pieces_fact
from embedding_core.errors import ConfigError, DataError
from embedding_core.storage import file_digest
from pipelines.config import load_config
from pipelines.previous.trained_data import (
    Arrived,
    Trained,
    TrainedPiece,
    arrived_spans,
    check_follows,
    chosen_spans,
    data_of_run,
    trained_spans,
)
from tests.support.two_days import CONFIG, write_day


@pytest.fixture
def config_of(tmp_path):
    """Return a function that loads the configuration of daily runs, with settings that override it."""
    (tmp_path / "my.yaml").write_text(CONFIG)
    for day in (3, 10, 4):
        write_day(tmp_path, day, range(9))

    def load(*overrides):
        return load_config(tmp_path / "my.yaml", overrides)

    return load


def trained_on(*spans):
    """Return what a version was trained on: spans of one file each, whose content is that of no other span."""
    return Trained({span: TrainedPiece(span, "", 1, 1, "") for span in spans}, runs=1)


def trained_on_all(config):
    """Return what a version was trained on: every span of the configuration, as its files are now."""
    pieces = data_of_run(config).pieces
    digests = {path: file_digest(path)["sha256"] for piece in pieces for path in piece.files}
    fact = pieces_fact(pieces, json.dumps({}), digests)["pieces"]
    return Trained({piece["span"]: TrainedPiece(**piece) for piece in fact}, runs=1)


def test_before_the_first_push_every_span_is_new_in_number_order(config_of):
    config = config_of()
    assert trained_spans(config) == Trained()
    assert arrived_spans(config, Trained()) == Arrived((3, 4, 10))


def test_span_after_last_trained_one_is_new_and_before_it_late(config_of):
    config = config_of()
    assert arrived_spans(config, trained_on(3)).new == (4, 10)
    assert arrived_spans(config, trained_on(3, 9)) == Arrived((10,), (4,), (3,))
    assert arrived_spans(config, trained_on(3, 4, 10)).new == ()


def test_spans_arrive_whatever_the_files_for_evaluation(config_of, tmp_path):
    test = tmp_path / "test.csv"
    shutil.copy(tmp_path / "days/3/rows.csv", test)
    config = config_of(f"data.eval_path={test}", "split={by: hash}")
    test.unlink()
    assert arrived_spans(config, trained_on(3)).new == (4, 10), "the run says that the file is gone"
    with pytest.raises(DataError, match="no file matches"):
        data_of_run(config)


def test_the_first_span_of_the_configuration_is_a_bound(config_of):
    assert arrived_spans(config_of("data.spans.first=4"), Trained()) == Arrived((4, 10))


def test_span_that_the_configuration_leaves_out_has_not_arrived(config_of):
    assert arrived_spans(config_of("data.spans.without=[4]"), Trained()) == Arrived((3, 10))
    with pytest.raises(ConfigError, match=r"`data\.spans\.without` is 'four': it must be a whole number"):
        config_of("data.spans.without=[four]")


def test_span_with_the_bytes_of_a_trained_or_new_one_is_a_copy(config_of, tmp_path):
    config = config_of()
    for day in (5, 11):
        shutil.copytree(tmp_path / "days/4", tmp_path / f"days/{day}")
    assert arrived_spans(config, Trained()) == Arrived((3, 4, 10), copied={5: 4, 11: 4})
    four = tmp_path / "days/4/rows.csv"
    size = four.stat().st_size
    digest = file_digest(four)["sha256"]
    trained = Trained({4: TrainedPiece(4, "", 1, size, digest)}, {(size, digest): 4})
    assert arrived_spans(config, trained) == Arrived((10,), (3,), (), {5: 4, 11: 4})
    again = config_of("warm_start={checkpoint: pushed, repeated_data: train}")
    assert arrived_spans(again, trained) == Arrived((5, 10, 11), (3,))


def test_dates_are_in_the_order_of_time(config_of, tmp_path):
    for day in ("2011-02-28", "2011-10-01", "2010-12-31"):
        (tmp_path / f"{day}.csv").write_text(f"item,shop,bought,part\ni,{day},1,a\n")
    config = config_of(f"data.path={tmp_path}/{{YYYY}}-{{MM}}-{{DD}}.csv")
    trained = trained_on("2011-02-28")
    assert arrived_spans(config, trained).late == ("2010-12-31",)
    assert arrived_spans(config, trained).new == ("2011-10-01",)


def test_trained_span_with_another_file_or_more_rows_is_changed(config_of, tmp_path):
    config = config_of(f"data.path={tmp_path}/days/{{SPAN}}/*.csv")
    trained = trained_on_all(config)
    assert arrived_spans(config, trained) == Arrived()
    (tmp_path / "days/4/more.csv").write_text("item,shop,bought,part\ni,s,1,a\n")
    with open(tmp_path / "days/10/rows.csv", "a") as file:
        file.write("i,s,1,a\n")
    assert arrived_spans(config, trained) == Arrived((), (), (4, 10))


def test_data_that_cannot_be_listed_is_not_data_yet_to_come(config_of, monkeypatch):
    config = config_of()

    def refuse(*_):
        raise PermissionError(13, "the credentials have expired")

    monkeypatch.setattr("components.example_gen.data_files._matching", refuse)
    with pytest.raises(DataError, match="the credentials have expired"):
        arrived_spans(config, Trained())


@pytest.mark.parametrize("state", [True, False], ids=["as recorded", "as releases before recorded it"])
def test_a_span_with_other_rows_of_the_same_size_is_changed(config_of, tmp_path, state):
    config = config_of()
    trained = trained_on_all(config)
    if not state:
        trained = Trained({span: dataclasses.replace(entry, state="") for span, entry in trained.spans.items()})
    ten = tmp_path / "days/10/rows.csv"
    before, content = ten.stat(), ten.read_bytes()
    ten.write_bytes(content.replace(b"s", b"z"))
    os.utime(ten, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy that keeps times
    assert arrived_spans(config, trained) == Arrived((), (), (10,))
    ten.write_bytes(content)
    assert arrived_spans(config, trained) == Arrived()


def test_files_that_nobody_wrote_are_not_read_again(config_of, monkeypatch):
    config = config_of()
    trained = trained_on_all(config)
    monkeypatch.setattr("pipelines.previous.trained_data.file_digest", None)
    assert arrived_spans(config, trained) == Arrived()


def test_run_reads_the_configured_spans_and_more_after_a_refusal(config_of):
    config, trained = config_of("follow.spans_per_run=2"), trained_on(1)
    assert chosen_spans(config, (3, 4, 5, 6, 7), trained) == (3, 4)
    assert chosen_spans(config, (3, 4, 5, 6, 7), trained, refused=(3, 4)) == (3, 4, 5, 6)
    assert chosen_spans(config, (3, 4), trained, refused=(3, 4)) == (3, 4)
    assert chosen_spans(config, (5, 6, 7), trained, refused=(3, 4)) == (5, 6)
    assert chosen_spans(config, (3, 4, 5), Trained()) == (3, 4, 5)
    assert chosen_spans(config_of(), (3, 4, 5), trained) == (3, 4, 5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.path=days/3/rows.csv", "`data.path` is .*needs spans"),
        ("warm_start=null", "`warm_start.checkpoint` is None: .*set `warm_start: pushed`"),
        ("warm_start=trained", "`warm_start.checkpoint` is 'trained'"),
        ("vocabulary_evolution=null", "`vocabulary_evolution.base` is None"),
        ("data.spans.last=10", "`data.spans.last` is 10: .*leave it out"),
    ],
)
def test_runs_that_do_not_go_on_from_each_other_are_refused(config_of, override, message):
    check_follows(config_of())
    with pytest.raises(ConfigError, match=message):
        check_follows(config_of(override))
