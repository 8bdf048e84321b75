"""Tests which previous run a run starts from, on artifact graphs like those that runs leave."""

import dataclasses
import json
import types

import pytest

from components.example_gen.data_files import pieces_fact
from components.pusher.served import MANIFEST
from embedding_core.errors import ConfigError
from embedding_core.storage import file_digest, sealed_json
from pipelines.lineage.graph import Execution, Node
from pipelines.previous import find_previous_run
from pipelines.previous.find_previous_run import choose_previous_run
from pipelines.previous.finished_trainings import BASE, BASELINE, START, FinishedTrainings
from pipelines.previous.trained_data import Piece, RunData

pytestmark = pytest.mark.tfx
AGAINST = "shadow.against"  # the key of a gate


def given(start="pushed", base=None, baseline=None, against=None):
    return {START: start, BASE: base, BASELINE: baseline, AGAINST: against}


def piece(folder, span, text):
    path = folder / f"{span}-{text}"
    path.write_text(text)
    return Piece(span, "days/{SPAN}.csv" if span is not None else str(path), (str(path),), len(text), state=text)


class Chain:
    """A graph of artifacts; each call of `run` adds those of a whole run."""

    def __init__(self, folder):
        self.folder, self.graph, self.live, self.destination = folder, {}, set(), "/serving"

    def add(self, kind, node, inputs=(), **facts):
        number = len(self.graph) + 1
        made = Execution(id=number, node=node, state="COMPLETE", seconds=None)
        self.graph[number] = Node(
            id=number, type=kind, uri=f"/{node}/{number}", facts=facts, producer=made, inputs=tuple(inputs)
        )
        return number

    def asked(self, *days, rows="all"):
        return RunData(rows, [piece(self.folder, span, text) for span, text in days])

    def run(self, *days, start=None, version=None, rows="all", baseline=None, shadowed=None):
        """Add a run on (span, content) pairs, started from the result of another; return artifact ids by kind."""
        pieces = self.asked(*days).pieces
        digests = {path: file_digest(path)["sha256"] for piece in pieces for path in piece.files}
        fact = pieces_fact(pieces, json.dumps({}), digests)["pieces"]
        examples = self.add("Examples", "ExampleGen", data={"rows": rows, "pieces": fact})
        words = self.add("components.Vocabularies", "VocabularyGen", [examples, *([start["words"]] if start else [])])
        loaded = []
        if start:
            loaded = [self.add("components.EmbeddingCheckpoint", "CheckpointLoader", [start["checkpoint"], words])]
        tables = self.add("components.TableConfigs", "TableConfigGen", [words])
        run = self.add("ModelRun", "EmbeddingTrainer", [examples, words, tables, *loaded])
        model = self.add("Model", "EmbeddingTrainer")
        self.graph[model] = dataclasses.replace(self.graph[model], producer=self.graph[run].producer)
        made = self.add("components.EmbeddingCheckpoint", "CheckpointRetriever", [run, words, tables])
        self.live |= {made, *loaded}
        blessing = self.add("ModelBlessing", "Evaluator", [model, *([baseline] if baseline else [])])
        self.add("ModelBlessing", "QualityGate", [model])
        self.add("ModelBlessing", "Shadow", [model, *([shadowed] if shadowed else [])])
        facts = {"pushed": 1, "pushed_version": version, "pushed_destination": f"/serving/{version}"} if version else {}
        push = self.add("PushedModel", "EmbeddingPusher", [model, run, words, blessing], **facts)
        return {"checkpoint": made, "words": words, "tables": tables, "model": model, "run": run, "push": push}

    def rollback(self, source, version, of):
        facts = {"pushed": 1, "pushed_version": version, "pushed_destination": f"/serving/{version}"}
        self.add("PushedModel", "Rollback", [source["push"]], rollback={"of": of}, **facts)

    def find(self, asked, given=None, **how):
        runs = FinishedTrainings(self.graph, frozenset(self.live), self.destination)
        return choose_previous_run(runs, asked, given or globals()["given"](), **how)

    def uri(self, run, kind="checkpoint"):
        return self.graph[run[kind]].uri


@pytest.fixture
def chain(tmp_path):
    return Chain(tmp_path)


@pytest.fixture
def days(chain):
    """Two days, pushed as versions 1 and 2."""
    first = chain.run((1, "monday"), version=1)
    return first, chain.run((2, "tuesday"), start=first, version=2)


def test_new_data_starts_from_the_newest_push(chain, days):
    found = chain.find(chain.asked((3, "wednesday")))
    assert found.checkpoint == chain.uri(days[1])
    assert found.table_configs == chain.uri(days[1], "tables")
    assert found.repeats is None
    assert found.notes == ("starts from version 2, trained on span 2.",)


def test_eval_files_that_the_tables_saw_are_refused(chain, days):
    asked = chain.asked((3, "wednesday"))
    judged = dataclasses.replace(asked, for_eval=[piece(chain.folder, None, "monday")])
    with pytest.raises(ConfigError, match=r"`data.eval_path`: .* was trained on by version 1"):
        chain.find(judged)
    fresh = dataclasses.replace(asked, for_eval=[piece(chain.folder, None, "friday")])
    assert chain.find(fresh).checkpoint == chain.uri(days[1])


def test_eval_file_that_was_a_part_of_a_trained_span_is_refused(chain):
    parts = [piece(chain.folder, 1, text) for text in ("morning", "evening")]
    day = Piece(1, "days/{SPAN}/*.csv", tuple(part.files[0] for part in parts), sum(part.size for part in parts), "day")
    chain.asked = lambda *days: RunData("all", [day]) if days == (1,) else RunData("all", [])
    chain.run(1, version=1)
    judged = RunData("all", [piece(chain.folder, 2, "tuesday")], [piece(chain.folder, None, "evening")])
    with pytest.raises(ConfigError, match=r"`data.eval_path`: .* was trained on by version 1"):
        chain.find(judged)
    fresh = dataclasses.replace(judged, for_eval=[piece(chain.folder, None, "friday!")])
    assert chain.find(fresh).repeats is None


def test_file_that_was_trained_on_once_is_not_two_files(chain):
    """Two empty files of this run equal the one of the previous run, whose third file is gone."""
    chain.run((None, "rows"), (None, "others"), (None, ""), version=1)
    empty = [dataclasses.replace(piece(chain.folder, None, ""), source=name) for name in ("empty", "void")]
    asked = RunData("all", [piece(chain.folder, None, "rows"), *empty])
    with pytest.raises(ConfigError, match="was trained on by version 1"):
        chain.find(asked)
    again = chain.asked((None, "rows"), (None, "others"), (None, ""))
    assert chain.find(again).repeats is not None


def test_same_data_starts_from_what_its_run_started_from(chain, days):
    found = chain.find(chain.asked((2, "tuesday")), given(base="pushed", baseline="pushed"))
    assert found.checkpoint == chain.uri(days[0])
    assert found.vocabularies == chain.uri(days[0], "words")
    assert found.table_configs == chain.uri(days[0], "tables")
    assert found.baseline == chain.uri(days[0], "model")
    assert found.repeats == "span 2: version 2 was trained on it"


def test_replay_is_on_newest_push_that_no_previous_call_made(chain):
    first = chain.run((1, "monday"), version=1)
    wanted = given(start=None, against="pushed")
    assert chain.find(chain.asked((2, "tuesday")), wanted).versions == {AGAINST: chain.uri(first, "push")}
    assert chain.find(chain.asked((1, "monday")), wanted).versions == {}  # the first push compared with nothing
    second = chain.run((2, "tuesday"), version=2, shadowed=first["push"])
    assert chain.find(chain.asked((2, "tuesday")), wanted).versions == {AGAINST: chain.uri(first, "push")}
    chain.run((3, "wednesday"), shadowed=second["push"])  # it was refused
    assert chain.find(chain.asked((4, "thursday")), wanted).versions == {AGAINST: chain.uri(second, "push")}
    assert chain.find(chain.asked((4, "thursday")), given(start=None)).versions == {}


def test_first_run_starts_cold_and_so_does_its_retry(chain):
    assert chain.find(chain.asked((1, "monday"))).checkpoint is None
    assert "starts cold" in chain.find(chain.asked((1, "monday"))).notes[0]
    chain.run((1, "monday"), version=1)
    assert chain.find(chain.asked((1, "monday")), given(base="pushed")).checkpoint is None


def test_retry_from_addresses_of_another_pipeline_keeps_them(chain):
    """An Importer outputs the checkpoint: only the other pipeline's metadata records what it was made from."""
    imported = {
        "checkpoint": chain.add("components.EmbeddingCheckpoint", "WarmStart"),
        "words": chain.add("components.Vocabularies", "BaseVocabularies"),
    }
    chain.run((1, "monday"), start=imported, version=1)
    found = chain.find(chain.asked((1, "monday")), given(base="pushed"))
    assert (found.checkpoint, found.vocabularies) == (chain.uri(imported), chain.uri(imported, "words"))


def test_again_and_its_own_retry_start_from_the_same_newest_push(chain, days):
    asked = chain.asked((2, "tuesday"))
    assert chain.find(asked, again=True, train_again=True).checkpoint == chain.uri(days[1])
    chain.run((2, "tuesday"), start=days[1], version=3)
    assert chain.find(asked).checkpoint == chain.uri(days[1])


def test_data_that_changed_is_trained_on_in_place_of_what_it_was(chain, days):
    found = chain.find(chain.asked((2, "tuesday, with late rows")))
    assert found.checkpoint == chain.uri(days[0])
    assert "span 2 changed since version 2 was trained on it" in found.notes[0]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([(1, "monday")], "span 1 was trained on by version 1"),
        ([(2, "tuesday"), (3, "wednesday")], "span 2 was trained on by version 2"),
        ([(3, "tuesday")], "span 3, then span 2 was trained on by version 2"),
    ],
)
def test_data_that_was_trained_on_otherwise_is_refused(chain, days, asked, words):
    with pytest.raises(ConfigError, match=words):
        chain.find(chain.asked(*asked))
    found = chain.find(chain.asked(*asked), train_again=True)
    assert found.checkpoint == chain.uri(days[1])
    assert words in found.notes[-1]


def test_window_given_again_is_the_same_run(chain, days):
    window = (2, "tuesday"), (3, "wednesday")
    chain.run(*window, start=days[1], version=3)
    assert chain.find(chain.asked(*window), train_again=True).checkpoint == chain.uri(days[1])


def test_files_without_spans_go_by_their_contents(chain):
    first = chain.run((None, "monday"), version=1)
    assert chain.find(chain.asked((None, "tuesday"))).checkpoint == chain.uri(first)
    assert chain.find(chain.asked((None, "monday"))).checkpoint is None
    with pytest.raises(ConfigError, match="monday was trained on by version 1"):
        chain.find(chain.asked((None, "monday"), (None, "tuesday")))


def test_other_rows_of_same_files_are_refused_unless_asked_for(chain):
    first = chain.run((None, "year"), version=1, rows="january")
    asked = chain.asked((None, "year"), rows="february")
    with pytest.raises(ConfigError, match="row filters that choose other rows"):
        chain.find(asked)
    assert chain.find(asked, train_again=True).checkpoint == chain.uri(first)
    chain.run((None, "year"), version=2, rows="february", start=first)
    assert chain.find(asked, train_again=True).checkpoint == chain.uri(first)


def test_refused_model_is_no_base_and_its_retry_starts_the_same(chain, days):
    chain.run((3, "wednesday"), start=days[1])
    for day in (3, "wednesday"), (4, "thursday"):
        assert chain.find(chain.asked(day)).checkpoint == chain.uri(days[1])


def test_trained_takes_it_and_so_does_latest_with_a_warning(chain, days):
    refused = chain.run((3, "wednesday"), start=days[1])
    asked = chain.asked((4, "thursday"))
    assert chain.find(asked, given("trained")).checkpoint == chain.uri(refused)
    assert chain.find(chain.asked((3, "wednesday")), given("trained")).checkpoint == chain.uri(days[1])
    found = chain.find(asked, given("latest"))
    assert found.checkpoint == chain.uri(refused)
    assert f"the training #{refused['run']}; 'pushed' would be version 2" in found.notes[0]


def test_experiment_that_was_pushed_elsewhere_is_no_base(chain, days):
    other = chain.run((3, "wednesday"), start=days[1], version=9)
    facts = {**chain.graph[other["push"]].facts, "pushed_destination": "/elsewhere/9"}
    chain.graph[other["push"]] = dataclasses.replace(chain.graph[other["push"]], facts=facts)
    assert chain.find(chain.asked((4, "thursday"))).checkpoint == chain.uri(days[1])
    chain.graph = {key: node for key, node in chain.graph.items() if node.facts.get("pushed_version") not in (1, 2)}
    with pytest.raises(ConfigError, match=r"pushed to '/serving' by this pipeline, but to \['/elsewhere'\]"):
        chain.find(chain.asked((4, "thursday")))


def test_version_that_a_rollback_went_back_to_is_the_base(chain, days):
    chain.rollback(days[0], 3, of=1)
    assert chain.find(chain.asked((3, "wednesday"))).checkpoint == chain.uri(days[0])
    assert chain.find(chain.asked((2, "tuesday"))).checkpoint == chain.uri(days[0])
    newest = chain.run((3, "wednesday"), start=days[0], version=4)
    assert chain.find(chain.asked((4, "thursday"))).checkpoint == chain.uri(newest)
    assert chain.find(chain.asked((3, "wednesday"))).checkpoint == chain.uri(days[0])
    chain.rollback(days[1], 5, of=2)
    assert chain.find(chain.asked((4, "thursday"))).checkpoint == chain.uri(days[1])


def test_unrecorded_version_is_of_the_run_its_manifest_names(chain, days, tmp_path):
    killed = chain.run((3, "wednesday"), start=days[1])
    manifest = tmp_path / "serving" / "3" / MANIFEST
    manifest.parent.mkdir(parents=True)
    facts = {"sources": {"model_run": chain.uri(killed, "run")}}
    manifest.write_bytes(sealed_json({"facts": facts, "files": {}}, "seal"))
    chain.destination = str(tmp_path / "serving")
    assert chain.find(chain.asked((3, "wednesday"))).checkpoint == chain.uri(days[1])
    for word in ("pushed", "served"):
        found = chain.find(chain.asked((4, "thursday")), given(word, against=word))
        assert found.checkpoint == chain.uri(killed)
        assert found.versions == {AGAINST: str(tmp_path / "serving" / "3")}
    manifest.write_text(json.dumps({"facts": {"sources": {"model_run": "/of/another/pipeline"}}}))
    with pytest.raises(ConfigError, match="does not know"):
        chain.find(chain.asked((4, "thursday")), given("served"))
    with pytest.raises(ConfigError, match="1 versions that the metadata does not know"):
        chain.find(chain.asked((4, "thursday")))


def test_words_that_stand_for_two_runs_are_refused(chain, days):
    chain.run((3, "wednesday"), start=days[1])
    with pytest.raises(ConfigError, match="refer to two different runs"):
        chain.find(chain.asked((4, "thursday")), given("pushed", base="trained"))
    assert chain.find(chain.asked((5, "friday")), given("trained", base="latest")).checkpoint


def test_address_is_checked_by_its_chain(chain, days):
    address = chain.uri(days[1])
    assert chain.find(chain.asked((3, "wednesday")), given(address)).checkpoint == address
    with pytest.raises(ConfigError, match="span 1 was trained on by version 1"):
        chain.find(chain.asked((1, "monday")), given(address))
    assert chain.find(chain.asked((2, "tuesday")), given(chain.uri(days[0]))).checkpoint == chain.uri(days[0])


def test_runs_that_did_not_record_their_data_are_said(chain, days):
    examples = next(node for node in chain.graph.values() if node.type == "Examples")
    chain.graph[examples.id] = dataclasses.replace(examples, facts={})
    assert "not every run" in chain.find(chain.asked((3, "wednesday"))).notes[-1]


def test_checkpoint_that_is_gone_is_refused_by_name(chain, days):
    chain.live.remove(days[1]["checkpoint"])
    with pytest.raises(ConfigError, match="the EmbeddingCheckpoint of version 2 is gone or damaged"):
        chain.find(chain.asked((3, "wednesday")))


def test_vocabularies_that_are_gone_are_not_compared(chain, days, tmp_path):
    found = chain.find(chain.asked((4, "thursday")), given("pushed", base=str(tmp_path / "gone")))
    assert found.vocabularies == str(tmp_path / "gone")


def test_baseline_is_the_push_before_also_in_a_retry(chain, days):
    found = [chain.find(chain.asked(day), given(None, baseline="pushed")) for day in ((2, "tuesday"), (3, "wednesday"))]
    assert [previous.baseline for previous in found] == [chain.uri(days[0], "model"), chain.uri(days[1], "model")]
    chain.run((4, "thursday"), version=3, baseline=days[0]["model"])
    found = chain.find(chain.asked((4, "thursday")), given(None, baseline="pushed"))
    assert found.baseline == chain.uri(days[0], "model")


def test_newer_versions_unknown_to_the_metadata_are_named(chain, days, tmp_path):
    chain.destination = str(tmp_path / "serving")
    for number, node in chain.graph.items():
        if node.facts.get("pushed"):
            facts = {**node.facts, "pushed_destination": f"{chain.destination}/{node.facts['pushed_version']}"}
            chain.graph[number] = dataclasses.replace(node, facts=facts)
    for version in (1, 2):
        (tmp_path / "serving" / str(version)).mkdir(parents=True)
    assert chain.find(chain.asked((3, "wednesday"))).notes == ("starts from version 2, trained on span 2.",)
    (tmp_path / "serving" / "7").mkdir()
    found = chain.find(chain.asked((3, "wednesday")))
    assert found.checkpoint == chain.uri(days[1])
    assert "1 newer versions" in found.notes[1]
    assert "the newest 7, are of trainings that the metadata does not know" in found.notes[1]


def test_run_on_data_of_a_rolled_back_version_says_so(chain, days, monkeypatch):
    def notes(start, *asked, **how):
        runs = FinishedTrainings(chain.graph, frozenset(chain.live), chain.destination)
        monkeypatch.setattr(find_previous_run, "references", lambda _: given(start))
        monkeypatch.setattr(find_previous_run, "finished_trainings", lambda _: runs)
        monkeypatch.setattr(find_previous_run, "data_of_run", lambda _: chain.asked(*asked))
        found = find_previous_run.find_previous_run(types.SimpleNamespace(warm_start=None), **how)
        return [note for note in found.notes if "rolled back" in note]

    assert notes("pushed", (2, "tuesday")) == notes(None, (2, "tuesday")) == []
    chain.rollback(days[0], 3, of=1)
    for start in "pushed", None:
        assert "span 2: version 2 was trained on it, and rolled back" in notes(start, (2, "tuesday"))[0]
        assert notes(start, (2, "tuesday, corrected")) == notes(start, (3, "wednesday")) == []
        assert notes(start, (2, "tuesday"), again=True) == []
    assert notes(None, (1, "monday")) == []
