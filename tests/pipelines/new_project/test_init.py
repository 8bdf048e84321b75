"""Tests `tfx-embeddings init`: what it guesses from rows, and that it loses nothing."""

import datetime
import json

import pyarrow as pa
import pytest
from known_tables import TABLES, guessed_roles, roles_by_hand, write_table
from odd_rows import NAMES, ROWS, write_odd_csv
from pyarrow import parquet

from embedding_core.errors import ConfigError, DataError
from embedding_core.storage import bounds
from pipelines.checks.column_codes import agreed, is_code_by_name, is_quantity_by_name, word_set
from pipelines.config import load_config
from pipelines.new_project.data_look import look_at
from pipelines.new_project.write_project import CONFIG, template_folder, write_project

pytestmark = pytest.mark.light


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a function that makes a project of CSV rows, and returns its configuration and its text."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(rows, label=None):
        (tmp_path / "rows.csv").write_text(rows, encoding="utf-8")
        write_project(tmp_path / "mine", str(tmp_path / "rows.csv"), label)
        return load_config(tmp_path / "mine" / CONFIG), (tmp_path / "mine" / CONFIG).read_text()

    return make


def table(header, row, count=200):
    return "\n".join([header, *(row(number) for number in range(count))]) + "\n"


def clicks(number):
    tags = "|".join(["old", "new", "red"][: 1 + number % 3])
    return f"u{number % 20},{number % 7},{tags},{number * 1.5},2026-01-{number % 28 + 1:02d},{number % 2}"


def test_eval_file_is_judged_by_and_must_have_the_columns(tmp_path):
    (tmp_path / "rows.csv").write_text(table("user,price,tags,cost,day,clicked", clicks))
    (tmp_path / "test.csv").write_text(table("user,price,tags,cost,day,clicked", clicks, 100))
    paths = [str(tmp_path / name) for name in ("rows.csv", "test.csv")]
    found = write_project(tmp_path / "mine", paths[0], None, paths[1])
    assert load_config(tmp_path / "mine" / CONFIG).data.eval_path == paths[1]
    assert "rows: 200 for train, 100 for eval, 0 filtered out, 0 in neither split, 0 bad" in found.lines
    (tmp_path / "test.csv").write_text("")
    with pytest.raises(DataError, match=r"test\.csv has no header"):
        write_project(tmp_path / "again", paths[0], None, paths[1])
    assert not (tmp_path / "again").exists()
    with pytest.raises(ConfigError, match="there is no `--data`"):
        write_project(tmp_path / "other", None, None, paths[1])


def features(config):
    return [column.name for column in config.features.dense], [column.name for column in config.features.categorical]


def test_odd_file_gets_its_dialect_and_every_column_a_reason(tmp_path):
    write_odd_csv(tmp_path / "odd.csv")
    found = write_project(tmp_path / "odd", str(tmp_path / "odd.csv"), None)
    config, text = load_config(tmp_path / "odd" / CONFIG), (tmp_path / "odd" / CONFIG).read_text()
    data = config.data
    assert (data.encoding, data.delimiter, data.decimal, data.missing) == ("cp1252", ";", ",", ("NA", "k.A."))
    assert data.allowed_bad_rate == 0.01
    assert (config.label.column, config.label.positive) == ("gekauft?", ("ja",))
    assert [column.source for column in config.features.dense] == ["Preis (€)", "menge"]
    assert [column.source for column in config.features.categorical] == ["kunde_id", "Straße", "tags", "e-mail"]
    options = {column.name: (column.separator, column.private) for column in config.features.categorical}
    assert (options["tags"], options["e-mail"]) == (("|", False), (None, True))
    assert all(f"{name}" in text for name in NAMES)
    assert text.count("guess: ") >= len(NAMES)
    assert found.problems == ()
    assert found.lines[0] == "label: gekauft? (binary); model: ranking"
    assert found.lines[1].startswith(f"all {ROWS - 2:,} rows")


def test_clicks_are_told_apart_by_what_their_values_look_like(project):
    config, text = project(table("user_id,weekday,tags,price,created,clicked", clicks))
    assert features(config) == (["price"], ["user_id", "weekday", "tags"])
    assert config.label.column == "clicked"
    assert config.features.categorical[0].private
    assert 'split: {by: time, column: created, before: "2026-01-23"}' in text


def test_label_of_the_command_line_decides_the_task(project):
    config, _ = project(table("user_id,weekday,tags,price,created,clicked", clicks), label="price")
    assert (config.label.column, config.label.kind) == ("price", "regression")


@pytest.mark.parametrize(
    ("values", "kind", "positive"),
    [
        (("yes", "no"), "binary", ()),
        (("kept", "returned", "kept"), "binary", ("returned",)),
        (("red", "green", "blue"), "multiclass", ()),
    ],
)
def test_values_of_the_label_decide_its_kind(project, values, kind, positive):
    config, _ = project(table("shop,outcome", lambda number: f"s{number % 9},{values[number % len(values)]}"))
    assert (config.label.kind, config.label.positive) == (kind, positive)


def test_rows_without_a_label_are_left_out(project):
    config, _ = project(table("shop,label", lambda number: f"s{number % 9},{number % 2 if number % 5 else ''}"))
    assert [(row_filter.column, row_filter.present) for row_filter in config.row_filters] == [("label", True)]


def test_events_of_users_and_items_become_a_retrieval_model(project):
    config, _ = project(table("user_id,item_id,place", lambda number: f"u{number % 20},i{number % 30},p{number % 3}"))
    assert (config.label.kind, config.model.name, config.training.softmax.feature) == (
        "positive",
        "two_tower",
        "item_id",
    )


@pytest.mark.parametrize("table", TABLES)
def test_known_table_gets_the_roles_of_a_hand(tmp_path, table):
    write_table(tmp_path / "rows.csv", table)
    assert guessed_roles(tmp_path / "rows.csv") == roles_by_hand(table)


def test_columns_of_one_coding_have_one_role(project):
    """Alone, X6 is dense: it has more than ten values, and the label follows them."""

    def row(n):
        return f"{n % 7},{n * 7 % 11},{min(n * 7 % 11, 9)},{min(n * 5 % 11, 9)},{int(n * 7 % 11 + n % 5 > 7)}"

    config, text = project(table("X3,X6,X7,X8,bought", row, 2_000))
    assert features(config) == ([], ["X3", "X6", "X7", "X8"])
    assert "like X7, which has nearly the same values: few distinct values" in text
    siblings = look_at(config.data.path).columns
    assert set(agreed({"X6": "codes", "X7": None, "X8": None}, siblings).values()) == {None}


def test_names_of_codes_and_of_quantities():
    codes = word_set(
        "userId USER_ID Member_number itemname adID StockCode zip mgr_resource item age_group ISBN queryID user channel"
    )
    quantities = word_set("user_age num_items item_price days_since_visit capital-gain hours-per-week views n_users")
    assert {name for name in codes | quantities if is_code_by_name(name)} == codes
    assert {name for name in codes | quantities if is_quantity_by_name(name)} == quantities


def test_events_of_whole_numbers_become_two_towers(project):
    header = "user,item,time,country"
    rows = table(header, lambda n: f"{n * 7 % 50},{n * 13 % 60},{1_700_000_000 + n},c{n % 3}")
    config, text = project(rows)
    assert features(config) == ([], ["user", "item"])
    assert list(config.build_arguments["query_features"]) == ["user"]
    assert 'before: "2023-11-14T22:16:00"' in text
    assert "country: guess: text, 3 distinct, 0% missing: tokens; neither tower reads it" in text


def test_thirty_columns_are_told_apart(project):
    names = [f"c{at}" for at in range(29)]
    rows = table(",".join([*names, "y"]), lambda n: ",".join([*(f"t{n % (at + 2)}" for at in range(29)), f"{n % 2}"]))
    config, _ = project(rows)
    assert features(config) == ([], names)


def test_numbers_of_a_users_column_with_gaps_are_whole(project):
    config, _ = project(table("user,price,y", lambda n: f"{'' if n % 9 == 0 else f'{n % 50}.0'},{n * 0.3},{n % 2}"))
    assert features(config) == (["price"], ["user"])
    assert config.data.whole_numbers == ("user",)


def test_file_without_a_header_gets_names_to_replace(project):
    config, _ = project(table("a,1", lambda number: f"{'abc'[number % 3]},{number % 2}"))
    assert config.data.columns == ("column_1", "column_2")


@pytest.mark.parametrize("header", ["user,2020,2021,clicked", "user,on,1.5,clicked"])
def test_header_may_have_numbers_among_its_names(project, header):
    config, _ = project(table(header, lambda number: f"u{number % 20},{number % 7},{number * 3.7},{number % 2}"))
    assert config.data.columns is None
    assert config.label.column == "clicked"


def test_index_that_pandas_writes_is_left_out_with_its_reason(project):
    config, text = project(table(",user,clicked", lambda number: f"{number},u{number % 20},{number % 2}"))
    assert features(config) == ([], ["user"])
    assert "it has no name" in text


def test_outcome_of_one_value_is_named_beside_the_guess(project):
    """Rows of purchases are all positive: the next item is predicted."""
    config, text = project(table("user,item,clicked", lambda number: f"u{number % 20},i{number * 7 % 30},1"))
    assert config.label.kind == "positive"
    assert "'clicked' is named like an outcome, but has one value in these rows" in text


def test_large_whole_numbers_are_not_numbers_of_rows(project):
    config, _ = project(table("user,price,clicked", lambda number: f"u{number % 20},{10**30 + number},{number % 2}"))
    assert [column.source for column in config.features.dense] == ["price"]


def test_killed_command_may_be_repeated(tmp_path):
    """The configuration is written last: without it, complete files of ours do not count as the user's."""
    write_project(tmp_path / "mine", None, None)
    (tmp_path / "mine" / CONFIG).unlink()
    write_project(tmp_path / "mine", None, None)
    assert (tmp_path / "mine" / CONFIG).is_file()
    with pytest.raises(ConfigError, match=r"has pipeline\.yaml already"):
        write_project(tmp_path / "mine", None, None)


def test_field_of_any_length_is_looked_at(project):
    config, _ = project(table("user,text,clicked", lambda n: f"u{n % 20},{'x' * (200_000 if n == 3 else 5)},{n % 2}"))
    assert config.label.column == "clicked"


def test_folder_that_cannot_be_made_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    for name in (tmp_path / "file" / "mine", tmp_path / ("n" * 400)):
        with pytest.raises(ConfigError, match="cannot be written"):
            write_project(name, None, None)


@pytest.mark.parametrize(
    ("columns", "shared"),
    [
        ("pickup_area,dropoff_area,shop", ["area", "area", "shop"]),
        ("pickup_area,dropoff_area,area", ["area_2", "area_2", "area"]),
        ("origin_città,destination_città,shop", ["citt", "citt", "shop"]),
    ],
)
def test_pairs_of_columns_share_a_vocabulary(project, columns, shared):
    config, _ = project(table(f"{columns},label", lambda n: f"{n % 9},{n % 8},{n % 7},{n % 2}"))
    assert [column.vocabulary_name for column in config.features.categorical] == shared


def test_value_of_another_column_is_not_missing(project):
    """In `rooms`, studio means that there is no number; in `kind` it is a value."""

    def row(n):
        return f"{ {0: 'studio', 1: 'k.A.'}.get(n % 20, n % 30 + 0.5) },{('studio', 'flat')[n % 2]},{n % 3 % 2}"

    config, _ = project(table("rooms,kind,label", row))
    assert config.data.missing == ("k.A.",)


def test_names_that_mean_something_to_yaml_are_read_back(project):
    names = ["no", "a: b", "x #y", "[z]", '"q"', "ä", "ß o", "true", "👩\u200d💻 is", "NO"]
    header = ",".join(json.dumps(name, ensure_ascii=False).replace('\\"', '""') for name in names)
    config, text = project(table(f"{header},label", lambda n: ",".join(f"t{n % 5}" for _ in names) + f",{n % 2}"))
    assert [column.source for column in config.features.categorical] == names[:-1]
    assert "NO: guess: as an input of the served model it has the name that 'no' has" in text


def test_project_from_parquet_with_every_kind_of_column(tmp_path):
    start = datetime.datetime(2026, 1, 1)
    rows = {
        "": range(200),
        "seen": [[f"i{row % 9}", "i1"] for row in range(200)],
        "at": [start + datetime.timedelta(hours=row) for row in range(200)],
        "where": [{"x": row} for row in range(200)],
        "user": [float(row % 9) if row % 7 else None for row in range(200)],
        "price": [row / 3 for row in range(200)],
        "vector": [[row / 3, 0.1] for row in range(200)],
        "bought": [row % 3 == 0 for row in range(200)],
    }
    parquet.write_table(pa.table(rows), tmp_path / "rows.parquet")
    write_project(tmp_path / "mine", str(tmp_path / "*.parquet"), None)
    config, text = load_config(tmp_path / "mine" / CONFIG), (tmp_path / "mine" / CONFIG).read_text()
    assert features(config) == (["price"], ["seen", "user"])
    assert config.features.categorical[0].multivalent
    assert config.data.whole_numbers == ("user",)
    assert "where: guess: of type struct<x: int64>" in text
    assert "vector: guess: lists of floats" in text
    assert config.label.column == "bought"


@pytest.mark.parametrize(
    ("name", "rows", "label", "error"),
    [
        ("a.csv", "", None, "no header"),
        ("a.csv", "shop,label\n", None, "no rows"),
        ("a.csv", 'shop,label\n"s1,0\ns2,1\n', None, r"no row can be read(.|\n)*a\.csv:2: malformed CSV: .*quotes"),
        (
            "a.csv",
            table("a,b", lambda n: f"a{n % 60},b{n % 70}"),
            None,
            "of a, b looks like .* `--label`.*kind: positive",
        ),
        ("a.csv", "price,label\n1.5,0\n2.5,1\n3.25,0\n", None, "needs at least one"),
        ("a.csv", table("shop,label", lambda n: f"s{n % 9},{n % 2}"), "lable", "did you mean 'label'"),
        ("a.csv", table("shop,label", lambda n: f"s{n % 9},1"), "label", "'label' has one value in all 200 rows"),
        ("a.txt", "a,b\n", None, "does not tell its format"),
        ("a.csv", "user,label\nu\0,1\n", None, "holds a NUL character"),
        (None, "", None, "there is no such file"),
    ],
)
def test_mistakes_have_one_error_and_leave_no_folder(tmp_path, name, rows, label, error):
    if name:
        (tmp_path / name).write_text(rows)
    with pytest.raises((ConfigError, DataError), match=error):
        write_project(tmp_path / "mine", str(tmp_path / (name or "none.csv")), label)
    assert not (tmp_path / "mine").exists()


def test_every_template_file_is_written_with_the_projects_name(tmp_path):
    write_project(tmp_path / "my-shop", None, None)
    written = {path.name: path.read_text() for path in (tmp_path / "my-shop").iterdir()}
    assert set(written) == {path.name for path in template_folder().iterdir() if path.is_file()}
    assert not [name for name, text in written.items() if "{{PIPELINE_NAME}}" in text]
    assert load_config(tmp_path / "my-shop" / CONFIG).name == "my_shop"


def test_more_columns_than_features_can_be_made_of(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "GUESSED_COLUMNS", 3)
    (tmp_path / "a.csv").write_text("a,b,c,label\n1,2,3,0\n")
    with pytest.raises(DataError, match=r"a\.csv has 4 columns, and 3 is the most of which features are made"):
        write_project(tmp_path / "mine", str(tmp_path / "a.csv"), None)


def test_empty_text_of_parquet_is_no_label(tmp_path):
    rows = {"shop": [f"s{row % 9}" for row in range(200)], "label": [("yes", "no", "")[row % 3] for row in range(200)]}
    parquet.write_table(pa.table(rows), tmp_path / "rows.parquet")
    found = write_project(tmp_path / "mine", str(tmp_path / "rows.parquet"), None)
    config = load_config(tmp_path / "mine" / CONFIG)
    assert (config.label.kind, config.row_filters[0].present, found.problems) == ("binary", True, ())
    assert "66 filtered out" in found.lines[-1]
