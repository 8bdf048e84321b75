"""Tests `follow`: spans as they arrive, a refused run, a lock, empty columns, and the files of old runs."""

import csv
import itertools
import json
import os
import shutil
import threading
from types import SimpleNamespace

import pytest

from components.example_gen.tally import TooFewRowsError
from components.pusher.publish import roll_back
from embedding_core.errors import DataError
from pipelines.commands import cli
from pipelines.commands.shared_options import NOTHING_PUSHED
from pipelines.config import load_config
from pipelines.previous.trained_data import Arrived
from tests.support.two_days import CONFIG, PRICED, chain_of, write_day

pytestmark = pytest.mark.tfx

ONE_ROW = [{"item": "i1", "shop": "s1", "bought": 0, "part": "a", "price": 1}]


def followed(folder, *overrides):
    """Follow until no span is left; return the report of each run."""
    from pipelines.local.following import follow

    return [report for _, report in follow(load_config(folder / "my.yaml", overrides), until_idle=True)]


def graphs(folder):
    """Return the content of each TransformGraph that is left, the oldest first."""
    from embedding_core.storage import folder_digests

    kept = (folder / "runs/my/artifacts/Transform/transform_graph").glob("*[0-9]")
    return [json.dumps(folder_digests(path), sort_keys=True) for path in sorted(kept, key=lambda path: int(path.name))]


def write_span(folder, day, rows):
    path = folder / "days" / str(day) / "rows.csv"
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_run_goes_on_from_the_pushed_one_and_keeps_few_files(ranking_days, tmp_path, capsys):
    """Span 3 arrives late: after 4, which nobody could train on, and a copy of 2. The kept baseline is of span 2."""
    folder = ranking_days.copy(tmp_path / "copy").folder
    write_span(folder, 4, ONE_ROW)
    assert followed(folder) == []
    said = capsys.readouterr().err
    assert "warning: no run until the next span arrives" in said
    assert "(span 4): no row is left for the eval split" in said

    write_day(folder, 3, range(10, 40), priced=True)
    shutil.copytree(folder / "days/2", folder / "days/5")
    settings = ["evaluation.baseline=pushed", "follow.full_run_every=1", "follow.keep_runs=1"]
    (report,) = followed(folder, *settings)
    assert report.push.pushed
    assert "the files of span 5 equal those of span 2, byte for byte: they are not trained on again" in (
        capsys.readouterr().err
    )
    chain = chain_of(folder)
    assert chain["spans"] == [[3, 4], [2], [1]]
    assert (chain["trainings"], chain["versions"]) == (3, 3)
    assert len(graphs(folder)) == 1
    assert os.listdir(folder / "runs/my/reports") == [report.push.version]
    assert not list((folder / "runs/my/artifacts").glob("*/.system/executor_execution/*"))
    assert followed(folder) == []


@pytest.mark.slow
def test_span_of_a_refused_run_is_read_again(tmp_path):
    (tmp_path / "my.yaml").write_text(CONFIG)
    write_day(tmp_path, 2, range(30))
    assert [report.push.pushed for report in followed(tmp_path)] == [True]
    write_day(tmp_path, 4, range(40))
    settings = ["evaluation.min_rows=10000", "follow.keep_runs=1"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["follow", str(tmp_path / "my.yaml"), "--until-idle", *(f"--set={setting}" for setting in settings)])
    assert ended.value.code == NOTHING_PUSHED
    assert chain_of(tmp_path)["spans"] == [[2]]
    first, second = graphs(tmp_path)
    assert first == second
    write_day(tmp_path, 6, range(10, 40))
    assert [report.push.pushed for report in followed(tmp_path)] == [True]
    assert chain_of(tmp_path)["spans"] == [[4, 6], [2]]


def test_a_first_span_with_too_few_rows_is_an_error(tmp_path):
    (tmp_path / "my.yaml").write_text(CONFIG)
    (tmp_path / "days").mkdir()
    write_span(tmp_path, 1, ONE_ROW)
    with pytest.raises(DataError, match=r"no row is left for the eval split"):
        followed(tmp_path)


def test_follow_waits_for_a_lock_as_long_as_it_may(tmp_path, capsys):
    from pipelines.local.following import follow
    from pipelines.local.work_dir import InUseError, run_lock

    (tmp_path / "my.yaml").write_text(CONFIG)
    write_day(tmp_path, 1, range(9))
    config = load_config(tmp_path / "my.yaml", ["follow.poll_seconds=0.1", "follow.wait_seconds=0.3"])
    with run_lock(config), pytest.raises(InUseError, match=f"another run uses it, process {os.getpid()}"):
        next(follow(config))
    assert capsys.readouterr().err.count("waiting, at most 0.3 s (`follow.wait_seconds`): `work_dir` is") == 1


def test_each_wait_for_a_lock_may_take_as_long(tmp_path, monkeypatch, capsys):
    """Between the two waits, a run got the lock and found too few rows."""
    from pipelines.local import following
    from pipelines.local.work_dir import InUseError

    (tmp_path / "my.yaml").write_text(CONFIG)
    write_day(tmp_path, 1, range(9))
    outcomes = iter([InUseError("first"), TooFewRowsError("few"), InUseError("second"), StopIteration("end")])
    seconds, spans = itertools.count(0, 3000), itertools.count()
    monkeypatch.setattr(following, "_run", lambda *_: (_ for _ in ()).throw(next(outcomes)))
    monkeypatch.setattr(following, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: next(seconds)))
    monkeypatch.setattr(following, "trained_spans", lambda _: SimpleNamespace(spans=(1,)))
    monkeypatch.setattr(following, "arrived_spans", lambda *_: Arrived())
    monkeypatch.setattr(following, "chosen_spans", lambda *_: (next(spans),))
    with pytest.raises(RuntimeError):
        next(following.follow(load_config(tmp_path / "my.yaml")))
    assert capsys.readouterr().err.count("waiting, at most 3600 s") == 2


@pytest.mark.slow
def test_follow_with_a_lock_an_empty_column_and_a_rollback(tmp_path, monkeypatch):
    from pipelines.local import following
    from pipelines.local.following import follow
    from pipelines.local.work_dir import run_lock

    (tmp_path / "my.yaml").write_text(PRICED)
    write_day(tmp_path, 1, range(30), priced=True)
    config = load_config(tmp_path / "my.yaml", ["follow.poll_seconds=0.1", "data.empty_columns=allow"])

    def lock():
        with run_lock(config):
            locked.set()
            waited.wait()

    def echo(text, **options):
        if text.startswith("waiting"):
            waited.set()

    locked, waited = threading.Event(), threading.Event()
    monkeypatch.setattr(following, "echo", echo)
    threading.Thread(target=lock, daemon=True).start()
    locked.wait()
    results = follow(config)
    assert next(results)[0].pushed
    assert waited.is_set()
    write_day(tmp_path, 2, range(30), priced=True)
    with open(tmp_path / "days/2/rows.csv", newline="") as file:
        write_span(tmp_path, 2, [{**row, "shop": "", "price": ""} for row in list(csv.DictReader(file))])
    strict = config.replace(data=config.data.replace(empty_columns="error"))
    with pytest.raises(DataError, match=r"\(span 2\): column '(shop|price)' is empty .* `data.empty_columns: allow`"):
        next(follow(strict))
    assert next(results)[0].pushed
    roll_back(config.push_destination)
    write_day(tmp_path, 3, range(30), priced=True)
    last, _ = next(results)
    assert last.pushed
    assert chain_of(tmp_path)["spans"] == [[2, 3], [1]]
