"""Tests `follow`: spans as they arrive, a refused run, a lock, empty columns, and the files of old runs."""

import csv
import json
import os
import shutil
import threading

import pytest

from components.pusher.rollback import roll_back
from embedding_core.errors import DataError
from pipelines.commands import cli
from pipelines.commands.shared_options import NOTHING_PUSHED
from pipelines.config import load_config
from support.two_days import CONFIG, chain_of, write_day

pytestmark = pytest.mark.tfx


def followed(folder, *overrides):
    """Follow until no span is left; return for each run whether it pushed."""
    from pipelines.local.following import follow

    config = load_config(folder / "my.yaml", overrides)
    return [result.pushed for result, _ in follow(config, until_idle=True)]


def digests(folder):
    """Return the content of each TransformGraph that is left, by the number of its execution."""
    from embedding_core.storage import folder_digests

    graphs = (folder / "runs/my/artifacts/Transform/transform_graph").glob("*[0-9]")
    return {int(one.name): json.dumps(folder_digests(one), sort_keys=True) for one in graphs}


def test_run_goes_on_from_the_pushed_one_and_rereads_the_refused(tmp_path, capsys):
    (tmp_path / "my.yaml").write_text(CONFIG)
    write_day(tmp_path, 2, range(30))
    assert followed(tmp_path) == [True]
    assert followed(tmp_path) == []

    write_span(tmp_path, 3, [{"item": "i1", "shop": "s1", "bought": 0, "part": "a"}])
    assert followed(tmp_path) == []
    assert "warning: no run until the next span arrives" in (said := capsys.readouterr().err)
    assert "(span 3): no row is left for the eval split" in said

    write_day(tmp_path, 4, range(40))
    settings = ["evaluation.min_rows=10000", "follow.keep_runs=1"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["follow", str(tmp_path / "my.yaml"), "--until-idle", *(f"--set={one}" for one in settings)])
    assert ended.value.code == NOTHING_PUSHED
    assert chain_of(tmp_path)["spans"] == [[2]]
    first, second = (content for _, content in sorted(digests(tmp_path).items()))
    assert first == second

    for day in (1, 6):
        write_day(tmp_path, day, range(10, 40))
    shutil.copytree(tmp_path / "days/2", tmp_path / "days/5")
    settings = ["evaluation.baseline=pushed", "follow.full_run_every=1", "follow.keep_runs=1"]
    assert followed(tmp_path, *settings) == [True]  # the baseline is a file of the pushed run, which is kept
    said = capsys.readouterr().err
    assert "1 spans arrived after a later one was trained on (1 to 1)" in said
    assert "the files of span 5 equal those of span 2, byte for byte: they are not trained on again" in said
    chain = chain_of(tmp_path)
    assert chain["spans"] == [[3, 4, 6], [2]]
    assert (chain["trainings"], chain["versions"]) == (3, 2)
    assert len(digests(tmp_path)) == 1
    newest = max(os.listdir(tmp_path / "runs/my/serving"), key=lambda name: (name.isdigit(), name))
    assert os.listdir(tmp_path / "runs/my/reports") == [newest]
    assert not list((tmp_path / "runs/my/artifacts").glob("*/.system/executor_execution/*"))
    assert followed(tmp_path) == []


def write_priced_day(folder, day, *, is_empty=False):
    """Write a day whose rows have a price too; in an empty one, no row has a shop or a price."""
    write_day(folder, day, range(30))
    path = folder / "days" / str(day) / "rows.csv"
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        row.update({"shop": "", "price": ""} if is_empty else {"price": 1 + (number + day) % 7})
    write_span(folder, day, rows)


def write_span(folder, day, rows):
    path = folder / "days" / str(day) / "rows.csv"
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_a_first_span_with_too_few_rows_is_an_error(tmp_path):
    (tmp_path / "my.yaml").write_text(CONFIG)
    (tmp_path / "days").mkdir()
    write_span(tmp_path, 1, [{"item": "i1", "shop": "s1", "bought": 0, "part": "a"}])
    with pytest.raises(DataError, match=r"no row is left for the eval split"):
        followed(tmp_path)


def test_follow_with_a_lock_an_empty_column_and_a_rollback(tmp_path, capsys, monkeypatch):
    from pipelines.local import following
    from pipelines.local.following import follow
    from pipelines.local.work_dir import InUseError, run_lock

    (tmp_path / "my.yaml").write_text(CONFIG.replace("[item, shop]", "[item, shop], dense: [price]"))
    write_priced_day(tmp_path, 1)
    config = load_config(tmp_path / "my.yaml", ["follow.poll_seconds=0.1", "data.empty_columns=allow"])
    with run_lock(config), pytest.raises(InUseError, match=f"another run uses it, process {os.getpid()}"):
        next(follow(config.replace(follow=config.follow.replace(wait_seconds=0.3))))
    assert capsys.readouterr().err.count("waiting, at most 0.3 s (`follow.wait_seconds`): `work_dir` is") == 1

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
    write_priced_day(tmp_path, 2, is_empty=True)
    strict = config.replace(data=config.data.replace(empty_columns="error"))
    with pytest.raises(DataError, match=r"\(span 2\): column '(shop|price)' is empty .* `data.empty_columns: allow`"):
        next(follow(strict))
    assert next(results)[0].pushed
    roll_back(config.push_destination)
    write_priced_day(tmp_path, 3)
    last, _ = next(results)
    assert last.pushed
    assert chain_of(tmp_path)["spans"] == [[2, 3], [1]]
