import os

import pytest

from components.example_gen.settings import format_of
from components.example_gen.spans import Spans
from embedding_core.errors import ConfigError
from pipelines.config import config_from_mapping, load_config
from pipelines.config.sections import Data, data_files, data_location, eval_pattern, missing_spans, resolve

pytestmark = pytest.mark.light


def _touch(folder, *names):
    for name in names:
        (folder / name).write_text("")


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("a.csv", "csv"),
        ("a.CSV.gz", "csv"),
        ("data_tfrecord-00000-of-00002.gz", "tfrecord"),
        ("x.tfrecords.gz", "tfrecord"),
        ("p.parquet", "parquet"),
        ("README.md", None),
    ],
)
def test_format_goes_by_the_extension(file, kind):
    assert format_of(file) == kind


DAYS = "2011-10-31.csv 2011-02-31.csv 2010-12-01.csv 2011-11-01.csv x.csv"


@pytest.mark.parametrize(
    ("files", "path", "spans", "found"),
    [
        ("b.csv a.csv.gz README.md c.parquet", "", None, "a.csv.gz b.csv"),
        (DAYS, "{YYYY}-{MM}-{DD}.csv", Spans(last="2011-10-31"), "2010-12-01.csv 2011-10-31.csv"),
        ("a1-10.csv b1-9.csv bb1-2.csv", "?1-{SPAN}.csv", Spans(first=9), "b1-9.csv a1-10.csv"),
    ],
    ids=["folder", "dates", "numbers"],
)
def test_files_of_a_path_are_in_order(tmp_path, files, path, spans, found):
    _touch(tmp_path, *files.split())
    data = Data(path=str(tmp_path / path), spans=spans, format="csv")
    assert [os.path.basename(file) for file in data_files(data)] == found.split()


def test_mixed_folder_needs_a_format(mistake, folder):
    _touch(folder, "x.parquet")
    line = mistake("data: .\nlabel: bought\nfeatures: {categorical: [item]}")
    assert "several formats (csv, parquet)" in line


def test_unknown_extension_needs_a_format(load, mistakes, folder):
    _touch(folder, "rows.txt")
    text = "data: {path: rows.txt%s}\nlabel: bought\nfeatures: {categorical: [item]}"
    assert "set it to csv, tfrecord or parquet" in mistakes(text % "")[0]
    assert load(text % ", format: csv").data.format == "csv"


@pytest.mark.parametrize(
    ("spans", "total", "first"),
    [
        (None, 2, ("2011-10-02", "2011-10-04")),
        (Spans(first="2011-10-03"), 1, ("2011-10-04",)),
        (Spans(first="2011-09-30", last="2011-10-03"), 2, ("2011-09-30", "2011-10-02")),
        (Spans(last="2011-12-31"), 89, ("2011-10-02", "2011-10-04", "2011-10-06", "2011-10-07", "2011-10-08")),
        (Spans(first="2011-10-03", last="2011-10-03"), 0, ()),
        (Spans(every=2), 0, ()),
        (Spans(every=4), 0, ()),
        (Spans(first="2011-09-29", last="2011-10-05", every=2), 1, ("2011-09-29",)),
    ],
)
def test_days_without_a_file_are_known(tmp_path, spans, total, first):
    for day in ("01", "03", "05"):
        (tmp_path / f"2011-10-{day}.csv").write_text("a\n1\n")
    assert missing_spans(Data(path=str(tmp_path / "{YYYY}-{MM}-{DD}.csv"), spans=spans)) == (total, first)


def test_numbers_without_a_file_are_known(tmp_path):
    for number in (0, 1, 4):
        (tmp_path / f"span-{number}.csv").write_text("a\n1\n")
    data = Data(path=str(tmp_path / "span-{SPAN}.csv"), spans=Spans(first=0, last=6))
    assert str(missing_spans(data)) == "2, 3, 5, 6"
    assert missing_spans(Data(path=str(tmp_path / "span-4.csv"))).total == 0


def test_missing_day_is_a_mistake_if_the_configuration_says_so(mistake, folder):
    for day in ("01", "03"):
        (folder / f"2011-10-{day}.csv").write_text("item,bought\na,1\n")
    text = (
        "data: {path: '{YYYY}-{MM}-{DD}.csv', spans: {missing: error}}\nlabel: bought\nfeatures: {categorical: [item]}"
    )
    line = mistake(text)
    assert "`data.spans.missing` is 'error', and 1 spans of" in line
    assert "2011-10-02" in line


def test_part_that_stands_twice_must_be_the_same(tmp_path):
    for day in ("01", "02"):
        (tmp_path / f"2011-01-{day}").mkdir()
        _touch(tmp_path / f"2011-01-{day}", "2011-01-01.csv")
    assert len(data_files(Data(path=str(tmp_path / "{YYYY}-{MM}-{DD}" / "{YYYY}-{MM}-{DD}.csv")))) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{path: '{YYYY}.csv'}", "needs all of"),
        ("{path: rows.csv, spans: {first: 1}}", "has no"),
        ("{path: '{SPAN}.csv', spans: {first: 2011-01-01}}", "whole number"),
        ("{path: '{YYYY}{MM}{DD}.csv', spans: {last: 3}}", "a date"),
        ("{path: '{YYYY}{MM}{DD}.csv', spans: {last: 2011-01-01}}", "in the spans asked for"),
        ("'package:no_such_package/x.csv'", "is not installed"),
        ("'a/**/x.csv'", "folders at any depth"),
    ],
)
def test_data_mistake_is_one_line(mistake, data, words):
    assert words in mistake(f"data: {data}\nlabel: bought\nfeatures: {{categorical: [item]}}")


def test_path_is_resolved_from_the_folder():
    assert resolve("../x.csv", "/a/b") == "/a/x.csv"
    assert resolve("gs://b/x.csv", "/a") == "gs://b/x.csv"
    assert resolve("~/x", "/a") == os.path.expanduser("~/x")


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/d/{YYYY}-{MM}-{DD}.csv", ("/d", "{YYYY}-{MM}-{DD}.csv")),
        ("/d/{SPAN}/x-*.csv", ("/d", "{SPAN}/x-*.csv")),
        ("/d/e*/[ab].csv", ("/d", "e*/[ab].csv")),
        ("gs://bucket/d/x.csv", ("gs://bucket/d", "x.csv")),
    ],
)
def test_location_is_the_folder_before_the_first_pattern(path, location):
    assert data_location(Data(path=path)) == location


def test_location_of_a_file_and_of_a_folder(tmp_path):
    _touch(tmp_path, "[b].csv")
    assert data_location(Data(path=str(tmp_path / "[b].csv"))) == (str(tmp_path), "[[]b].csv")
    assert data_location(Data(path=str(tmp_path))) == (str(tmp_path), "*")


def test_path_that_exists_is_literal(tmp_path):
    for name in ("run[1]", "run1", "a\\b"):
        (tmp_path / name).mkdir()
        _touch(tmp_path / name, "a.csv", "b[1].csv", "b1.csv")
    for path, expected in {
        "run[1]/a.csv": ["run[1]/a.csv"],
        "run[1]/*.csv": ["run[1]/a.csv", "run[1]/b1.csv", "run[1]/b[1].csv"],
        "run[1]/b[1].csv": ["run[1]/b[1].csv"],  # an existing file is taken literally
        "run[1]": ["run[1]/a.csv", "run[1]/b1.csv", "run[1]/b[1].csv"],
        "run[12]/a.csv": ["run1/a.csv"],  # a pattern, since no folder has this name
        "a\\b/a.csv": ["a\\b/a.csv"],
    }.items():
        found = data_files(Data(path=str(tmp_path / path)))
        assert [os.path.relpath(file, tmp_path) for file in found] == expected


def test_brackets_and_placeholders_go_together(tmp_path):
    for name in ("a", "b", "c", "d[1]"):
        (tmp_path / name).mkdir()
        _touch(tmp_path / name, "1.csv", "2.csv")
    found = data_files(Data(path=str(tmp_path / "[ab]/{SPAN}.csv"), spans=Spans(first=2)))
    assert [os.path.relpath(file, tmp_path) for file in found] == ["a/2.csv", "b/2.csv"]
    assert len(data_files(Data(path=str(tmp_path / "[!ab]/{SPAN}.csv")))) == 2
    assert data_files(Data(path=str(tmp_path / "d[1]/{SPAN}.csv")))[0].endswith("d[1]/1.csv")


@pytest.mark.parametrize("name", ["run[1]", "run*", "what?", "back\\slash"])
def test_work_dir_that_tfx_would_take_for_a_pattern_is_refused(mistake, minimal, name):
    line = mistake(f"{minimal}work_dir: '{name}'\n")
    assert "my.yaml:4: `work_dir` is" in line
    assert f"TFX and TensorFlow take its {next(sign for sign in '*?[' + chr(92) if sign in name)!r} for a" in line


@pytest.mark.parametrize("key", ["push: {destination: '%s'}", "evaluation: {baseline: '%s'}"])
def test_model_folder_that_is_a_pattern_of_tensorflow_is_refused(mistakes, minimal, key):
    assert "take its '[' for a pattern" in mistakes(f"{minimal}{key % 'models/run[1]'}\n")[0]


@pytest.mark.parametrize("name", ["a b", "caffè", "{x}", "a,b@2", "it''s", "a]b", "#%&;=+~$"])
def test_work_dir_of_other_names_is_taken(load, minimal, name):
    assert load(f"{minimal}work_dir: '{name}'\n").work_dir.endswith(name.replace("''", "'"))


def test_folder_of_the_file_counts_for_the_work_dir(tmp_path):
    folder = tmp_path / "my[1]"
    folder.mkdir()
    _touch(folder, "rows.csv")
    values = {"data": "rows.csv", "label": "bought", "features": {"categorical": ["item"]}}
    with pytest.raises(ConfigError, match=r"`work_dir` is '.*my\[1\]/runs/pipeline': TFX and TensorFlow take its '\['"):
        config_from_mapping(values, folder)
    assert config_from_mapping({**values, "work_dir": str(tmp_path / "w")}, folder).data.path == str(
        folder / "rows.csv"
    )


@pytest.mark.parametrize(
    ("path", "other", "location"),
    [
        ("/a/b/train.csv", "/a/b/test.csv", ("/a/b", "train.csv", "test.csv")),
        ("/a/{SPAN}.csv", "/b/test/x.csv", ("/", "a/{SPAN}.csv", "b/test/x.csv")),
        ("gs://b/a/*.csv", "gs://b/test.csv", ("gs://b", "a/*.csv", "test.csv")),
    ],
)
def test_both_paths_are_below_one_folder(path, other, location):
    data = Data(path=path, eval_path=other)
    assert (*data_location(data), eval_pattern(data)) == location


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["data.eval_path=rows.csv"], "would be in both splits"),
        (["data.eval_path=absent.csv"], "`data.eval_path` is "),
        (["data.eval_path='{SPAN}.csv'"], "it has no placeholders"),
        (["data.eval_path=gs://b/test.csv"], "in the same bucket"),
        (["data.eval_path=test.csv", "split.eval_fraction=0.1"], "leave out one of the two"),
    ],
)
def test_eval_path_that_cannot_be_is_refused(tmp_path, sets, words):
    for name in ("rows.csv", "test.csv"):
        (tmp_path / name).write_text("item,label\na,1\n")
    (tmp_path / "my.yaml").write_text("data: {path: rows.csv}\nlabel: label\nfeatures: {categorical: [item]}\n")
    with pytest.raises(ConfigError, match=words):
        load_config(tmp_path / "my.yaml", sets)
