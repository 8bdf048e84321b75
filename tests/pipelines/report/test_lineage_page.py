"""Tests the lineage page of hand-made runs: its figures and its links."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError, DataError
from embedding_core.vocabulary import save_vocabulary, vocabulary_from_counts
from pipelines.commands import cli
from pipelines.lineage.ancestors import generations, lineages_of
from pipelines.lineage.graph import files_of, read_records, upstream
from pipelines.report.lineage_page import collect_page, find_token, lineage_html
from tests.pipelines.lineage_check import PageText

pytestmark = pytest.mark.light


def vocabulary(name, tokens, **more):
    """The first token is the most frequent one."""
    counts = np.arange(len(tokens), 0, -1)
    return vocabulary_from_counts(
        name, pa.array([token.encode() for token in tokens], pa.large_binary()), counts, **more
    )


class Root:
    """A folder like the one that the components write: artifacts, with a lineage record beside each."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, kind, number, node, inputs=(), files=(), **facts):
        uri = self.folder / node / kind.rpartition(".")[2].lower() / str(number)
        uri.mkdir(parents=True)
        record = {
            "node": node, "key": "k", "type": kind, "uri": str(uri), "facts": facts,
            "inputs": [{"key": "k", "type": source, "uri": str(place)} for source, place in inputs],
            "files": [{"path": path, "size": size} for path, size in files],
        }  # fmt: skip
        (uri.parent / f"{number}.lineage.json").write_text(json.dumps(record))
        return uri

    def add_run(self, number, companies, people, auc, *, start=None, same_data=False):
        """Write one run; `start` is the run whose checkpoint it starts from, and whose data it reads if `same_data`."""
        days = [(f"/data/{day}.csv", 1000 + day) for day in range(1, number + 1)]
        ingest = {"rows_read": 1500 * number, "splits": {"train": 1000 * number, "eval": 500 * number}}
        examples = self.folder / "ExampleGen" / "examples" / str(start)
        if not same_data:
            examples = self.write("Examples", number, "ExampleGen", files=days, ingest=json.dumps(ingest))
        sizes = {"company": {"size": len(companies)}, "person": {"size": len(people)}}
        sizes["person"] |= {"drift": {"who": {"new_rows": 0.25}}} if start else {}
        sizes["company"] |= {"evolution": {"new": 1, "dropped": 2}} if start else {}
        vocabularies = self.write(
            "components.Vocabularies", number, "VocabularyGen", [("Examples", examples)], vocabularies=json.dumps(sizes)
        )
        for made in (vocabulary("company", companies), vocabulary("person", people, private=True)):
            save_vocabulary(made, vocabularies)
        tables = self.write(
            "components.TableConfigs", number, "TableConfigGen", [("components.Vocabularies", vocabularies)]
        )
        self.lay_out(tables, len(companies))
        inputs = [
            ("Examples", examples),
            ("components.Vocabularies", vocabularies),
            ("components.TableConfigs", tables),
        ]
        inputs.append(("TransformGraph", "/elsewhere/graph"))
        if start:
            kind = "components.EmbeddingCheckpoint"
            earlier = self.folder / "CheckpointRetriever" / "embeddingcheckpoint" / str(start)
            remap = json.dumps({"company": {"kept": 3, "kept_traffic": 0.75}})
            inputs.append((kind, self.write(kind, number, "CheckpointLoader", [(kind, earlier)], remap=remap)))
        run = self.write("ModelRun", number, "EmbeddingTrainer", inputs, eval_auc=auc, step=100 * number)
        model = self.write("Model", number, "EmbeddingTrainer", inputs, eval_auc=auc)
        self.write("components.EmbeddingCheckpoint", number, "CheckpointRetriever", [("ModelRun", run)])
        served = {"pushed": 1, "pushed_version": str(number), "pushed_destination": f"/serving/{number}"}
        self.write("PushedModel", number, "EmbeddingPusher", [("Model", model), ("ModelRun", run)], **served)

    def lay_out(self, tables, tokens):
        config = EmbeddingConfig(
            tables=(TableConfig(name="company", vocabulary_size=tokens + 1, dim=4, oov_rows=1, vocabulary="company"),),
            features=(FeatureConfig(name="company", table="company", column=ColumnConfig(name="company")),),
        )
        (tables / "embedding_config.json").write_text(config.to_json())
        plan = {"company": {"rows": tokens + 1, "dim": 4, "table_bytes": 16 * (tokens + 1), "slot_bytes": 0}}
        (tables / "plan.json").write_text(json.dumps({"tables": plan}))


@pytest.fixture
def root(tmp_path):
    made = Root(tmp_path / "root")
    made.add_run(1, ["Flash", "Blue", "Taxi"], ["anna"], auc=0.75)
    made.add_run(2, ["Flash", "Taxi", "New <Cab>", "More"], ["anna", "berta"], auc=0.8)
    return made


@pytest.fixture
def graph(root):
    return read_records(str(root.folder))


@pytest.fixture
def line(tmp_path):
    """A graph of three runs; the third starts from the checkpoint of the second."""
    made = Root(tmp_path / "line")
    made.add_run(1, ["Flash"], ["anna"], auc=0.7)
    made.add_run(2, ["Flash", "Taxi"], ["anna"], auc=0.75)
    made.add_run(3, ["Flash", "Taxi", "More"], ["anna", "berta"], auc=0.8, start=2)
    return read_records(str(made.folder))


def the(graph, kind, number):
    (found,) = [node.id for node in graph.values() if node.type == kind and node.uri.endswith(f"/{number}")]
    return found


@pytest.fixture
def page(graph):
    now, before = (upstream(graph, the(graph, "PushedModel", number)) for number in (2, 1))
    return collect_page(now, before)


def test_lineage_of_a_push_reaches_its_own_files_and_no_others(graph):
    nodes = upstream(graph, the(graph, "PushedModel", 2))
    assert [file["path"] for node in nodes.values() for file in files_of(node)] == ["/data/1.csv", "/data/2.csv"]
    assert {node.uri.rpartition("/")[2] for node in nodes.values()} == {"2", "graph"}


def test_difference_counts_tokens_and_shows_no_private_one(page):
    company, person = page.vocabularies
    assert (company.came, company.went, company.stayed) == (2, 1, 2)
    assert (company.new_tokens, company.lost_tokens) == (("New <Cab>", "More"), ("Blue",))
    assert (person.came, person.went, person.new_tokens) == (1, 0, ())
    assert "berta" not in lineage_html(page, "t")


def test_tables_and_metrics_stand_beside_those_before(page):
    assert [(row["rows"], row["rows_before"], row["bytes"]) for row in page.tables] == [(5, 4, 80)]
    assert page.metrics == {"eval_auc": (0.8, 0.75), "step": (200, 100)}
    assert page.before == "1"


def test_token_is_looked_up_in_the_vocabulary_of_its_own_run(tmp_path):
    made = Root(tmp_path / "line")
    made.add_run(9, ["Flash"], ["anna"], auc=0.7)
    made.add_run(10, ["Taxi", "Flash"], ["anna"], auc=0.75, start=9)  # its address sorts before that of 9
    graph = read_records(str(made.folder))
    lineage = upstream(graph, the(graph, "PushedModel", 10))
    assert find_token(lineage, "company", "Flash").row == 1
    assert collect_page(lineage, upstream(graph, the(graph, "PushedModel", 9))).metrics["eval_auc"] == (0.75, 0.7)


def generations_of(graph, number):
    pushes = {version: the(graph, "PushedModel", version) for version in (1, 2, 3)}
    return generations(lineages_of(graph, pushes[number], pushes))


def test_line_holds_only_the_runs_that_a_model_came_out_of(line):
    assert [generation.version for generation in generations_of(line, 3)] == ["2", "3"]
    assert [generation.version for generation in generations_of(line, 2)] == ["2"]


def test_generation_has_the_figures_of_its_own_run(line):
    first, second = generations_of(line, 3)
    assert (first.auc, first.rows, first.sizes, first.new, first.kept) == (
        0.75, 2000, {"company": 2, "person": 1}, {}, {},
    )  # fmt: skip
    assert (second.auc, second.rows, second.data) == (0.8, 3000, ("1.csv", "3.csv"))
    assert (second.new, second.dropped, second.kept) == ({"company": 1}, {"company": 2}, {"company": 0.75})
    assert second.drift == {"who": 0.25}


def test_checkpoint_of_another_model_is_no_warm_start(tmp_path):
    """The evaluation compares a cold run with a version that had a warm start."""
    made = Root(tmp_path / "line")
    made.add_run(1, ["Flash"], ["anna"], auc=0.7)
    made.add_run(2, ["Flash"], ["anna"], auc=0.75, start=1)
    made.add_run(3, ["Flash"], ["anna"], auc=0.8)
    record = made.folder / "EmbeddingPusher" / "pushedmodel" / "3.lineage.json"
    push = json.loads(record.read_text())
    push["inputs"] += json.loads((record.parent / "2.lineage.json").read_text())["inputs"][:1]
    record.write_text(json.dumps(push))
    graph = read_records(str(made.folder))
    remaps = [collect_page(upstream(graph, the(graph, "PushedModel", number))).remap for number in (2, 3)]
    assert [bool(remap) for remap in remaps] == [True, False]


def test_run_on_the_data_of_the_run_before_has_its_figures_too(tmp_path):
    made = Root(tmp_path / "line")
    made.add_run(1, ["Flash"], ["anna"], auc=0.7)
    made.add_run(2, ["Flash"], ["anna"], auc=0.75, start=1, same_data=True)
    graph = read_records(str(made.folder))
    pushes = {version: the(graph, "PushedModel", version) for version in (1, 2)}
    first, second = generations(lineages_of(graph, pushes[2], pushes))
    assert (second.rows, second.data, second.auc) == (first.rows, first.data, 0.75)
    assert "Examples" not in {node.type for node in second.nodes.values()}


def test_artifact_is_of_one_generation_and_source_of_the_next(line):
    first, second = generations_of(line, 3)
    assert not first.nodes.keys() & second.nodes.keys()
    assert {node.type for node in second.sources.values()} == {"ModelRun", "TransformGraph"}


def test_page_of_a_line_shows_every_run_and_has_no_dead_link(line):
    lineages = lineages_of(line, the(line, "PushedModel", 3), {2: the(line, "PushedModel", 2)})
    page = collect_page(lineages[-1], lineages[0], lineages)
    read = PageText(lineage_html(page, "version 3"))
    assert {link[1:] for link in read.links} <= set(read.ids)
    assert {"version-2", "version-3"} <= set(read.ids)
    assert read.tables["From run to run"] == [
        ["run", "version", "data", "rows", "AUC"],
        ["1", "2", "1.csv to 2.csv", "2,000", "0.75"],
        ["2", "3", "1.csv to 3.csv", "3,000", "0.8"],
        *(["run", "company", "person"], ["1", "2", "1"], ["2", "3 +1 -2", "2"]),
        *(["run", "who"], ["1", "-"], ["2", "25.0%"]),
        *(["run", "company"], ["1", "-"], ["2", "75.0%"]),
    ]


def test_address_with_a_slash_at_its_end_is_the_same(graph, root):
    for record in root.folder.glob("*/*/*.lineage.json"):
        values = json.loads(record.read_text())
        values["inputs"] = [{**entry, "uri": entry["uri"] + "/"} for entry in values["inputs"]]
        record.write_text(json.dumps(values))
    assert read_records(str(root.folder)) == graph


def run(capsys, *arguments):
    cli.app(["lineage", *arguments], standalone_mode=False)
    return capsys.readouterr().out


def test_command_prints_the_newest_push_of_recorded_artifacts(root, capsys):
    out = run(capsys, "--recorded", str(root.folder))
    assert "pushed_version: 2" in out
    assert "Vocabularies" in out


def test_command_says_where_a_row_is_and_which_models_saw_a_file(root, capsys):
    assert "row 1 of company, counted 3 times" in run(capsys, "--recorded", str(root.folder), "--token", "company=Taxi")
    out = run(capsys, "--recorded", str(root.folder), "--forward", "2.csv")
    assert "pushed version 2 /serving/2" in out
    assert "pushed version 1" not in out


def test_file_for_evaluation_trained_no_model(root, capsys):
    for record in root.folder.glob("ExampleGen/*/*.lineage.json"):
        data = json.loads(record.read_text())
        data["files"].append({"path": "/data/test.csv", "size": 7, "split": "eval"})
        record.write_text(json.dumps(data))
    out = run(capsys, "--recorded", str(root.folder), "--forward", "test.csv")
    assert out.splitlines() == ["test.csv: in 0 Examples, and for evaluation alone in 2"]
    graph = read_records(str(root.folder))
    lineage = upstream(graph, the(graph, "PushedModel", 2))
    assert generations([lineage])[0].data == ("1.csv", "2.csv")
    html = lineage_html(collect_page(lineage), "t")
    assert html.count(" for evaluation") == html.count("/data/test.csv</code> for evaluation") == 1


def test_token_of_a_lineage_without_vocabularies_is_an_error(graph):
    with pytest.raises(DataError, match="was made of no Vocabularies"):
        find_token(upstream(graph, the(graph, "Examples", 1)), "company", "Taxi")


def test_command_tells_a_tokens_row_in_every_run_of_the_line(line, tmp_path, capsys):
    out = run(capsys, "--recorded", str(tmp_path / "line"), "--token", "company=Taxi").splitlines()
    assert [text.strip() for text in out[1:]] == [
        "version 3: row 1, counted 2 times in 1.csv to 3.csv", "version 2: row 1, counted 1 times in 1.csv to 2.csv",
    ]  # fmt: skip
    out = run(capsys, "--recorded", str(tmp_path / "line"), "--token", "company=More").splitlines()
    assert "version 2: no row in" in out[2]
    (vocabulary,) = [node.uri for node in line.values() if node.uri.endswith("VocabularyGen/vocabularies/2")]
    shutil.rmtree(vocabulary)
    assert "its vocabulary is gone" in run(capsys, "--recorded", str(tmp_path / "line"), "--token", "company=More")


def test_tree_is_of_the_run_itself_and_names_the_versions_before(line, tmp_path, capsys):
    out = run(capsys, "--recorded", str(tmp_path / "line"))
    assert "descends from these versions, the newest first (see --version): 2" in out
    assert "PushedModel" in out
    assert "examples/2" not in out


def test_hostile_names_and_tokens_are_text_on_the_page(tmp_path):
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&"
    made = Root(tmp_path / "evil")
    made.add_run(1, ["Flash"], ["anna"], auc=0.7)
    made.add_run(2, ["Flash", evil], ["anna"], auc=0.7)
    made.write("Model", 9, f"Node{evil.replace('/', '')}", note=evil)
    graph = read_records(str(made.folder))
    now, before = (upstream(graph, the(graph, "PushedModel", number)) for number in (2, 1))
    everything = {**now, **graph}
    html_text = lineage_html(collect_page(everything, before), evil)
    assert evil in PageText(html_text).text
    assert "<script" not in html_text
    assert "<img" not in html_text


def test_command_starts_from_a_checkpoint_or_an_older_version(root, capsys, tmp_path):
    checkpoint = root.folder / "CheckpointRetriever" / "embeddingcheckpoint" / "1"
    assert "ModelRun" in run(capsys, "--recorded", str(root.folder), "--checkpoint", str(checkpoint))
    page = tmp_path / "one.html"
    assert str(page) in run(capsys, "--recorded", str(root.folder), "--version", "1", "--html", str(page))
    assert "compared with" not in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ([], ConfigError, "one of the two"),
        (["--version", "9"], DataError, "no version 9"),
        (["--checkpoint", "/x"], DataError, "choose from"),
        (["--forward", "9.csv"], DataError, "no Examples were made of '9.csv'"),
        (["--forward", "/1.csv"], DataError, "no Examples were made of '/1.csv'"),
        (["--token", "company"], ConfigError, "VOCABULARY=TOKEN"),
        (["--token", "compani=Taxi"], DataError, "unknown vocabulary 'compani': did you mean 'company'"),
        (["--html", "/nowhere/page.html"], ConfigError, "cannot be written"),
    ],
)
def test_what_the_command_cannot_do_is_one_error(root, arguments, error, words):
    given = ["--recorded", str(root.folder), *arguments] if arguments else []
    with pytest.raises(error, match=words):
        cli.app(["lineage", *given], standalone_mode=False)


def test_folder_without_records_is_one_error(tmp_path):
    with pytest.raises(DataError, match="no "):
        read_records(str(tmp_path))
