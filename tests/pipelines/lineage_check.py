"""Parses a lineage page, and compares its links and figures with the metadata store and the artifacts' files."""

import hashlib
import html.parser
import json
from pathlib import Path

from ml_metadata.proto import metadata_store_pb2 as mlmd

from embedding_core.vocabulary import load_vocabularies

MADE, TAKEN = (mlmd.Event.OUTPUT, mlmd.Event.DECLARED_OUTPUT), (mlmd.Event.INPUT, mlmd.Event.DECLARED_INPUT)


class PageText(html.parser.HTMLParser):
    """The ids with a hyphen, links, loaded resources, text and tables of a page.

    `tables` maps the id of a section, such as "artifact-7", or the text of a heading to the rows of cells that follow
    it. `linked` maps such a key and the text of a row's first cell to the links in that row.
    """

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded, self.text = [], [], [], ""
        self.tables, self.linked, self._place, self._row, self._heading = {}, {}, "", None, None
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given and "-" in given["id"] else []
        self.loaded += [given[key] for key in ("src", "data", "poster") if key in given]
        if tag == "link":
            self.loaded.append(given.get("href"))
        if tag == "a":
            self.links.append(given["href"])
            if self._in_cell:
                self.linked.setdefault((self._place, self._row[0]), []).append(given["href"])
        if tag == "section":
            self._place = given["id"]
        if tag == "h2":
            self._heading = ""
        if tag == "tr":
            self._row = []
            self.tables.setdefault(self._place, []).append(self._row)
        if tag in ("td", "th"):
            self._row.append("")
            self._in_cell = True

    def handle_endtag(self, tag):
        if tag == "h2":
            self._place, self._heading = self._heading, None
        if tag in ("td", "th"):
            self._row[-1] = self._row[-1].strip()
            self._in_cell = False

    def handle_data(self, data):
        self.text += data
        if self._heading is not None:
            self._heading += data
        if self._in_cell:
            self._row[-1] += data


class Store:
    """The artifacts, executions and events of ML Metadata, read without the code under test."""

    def __init__(self, store):
        self.artifacts = {artifact.id: artifact for artifact in store.get_artifacts()}
        self.executions = {execution.id: execution for execution in store.get_executions()}
        self.node = {
            execution: context.name.rpartition(".")[2]
            for execution in self.executions
            for context in store.get_contexts_by_execution(execution)
            if context.type == "node"
        }
        events = store.get_events_by_execution_ids(list(self.executions))
        self.maker, self.inputs = {}, {}
        for event in sorted(events, key=lambda event: -event.execution_id):
            if event.type in MADE:
                self.maker[event.artifact_id] = event.execution_id
            if event.type in TAKEN:
                self.inputs.setdefault(event.execution_id, set()).add(event.artifact_id)

    def facts(self, artifact):
        found = {}
        for key, value in self.artifacts[artifact].custom_properties.items():
            plain = getattr(value, value.WhichOneof("value"))
            if value.WhichOneof("value") == "struct_value":
                (plain,) = dict(plain).values()
            try:
                found[key] = json.loads(plain) if isinstance(plain, str) else plain
            except ValueError:
                found[key] = plain
        return found

    def inputs_of(self, artifact):
        return self.inputs.get(self.maker.get(artifact), set())

    def lineage(self, artifact):
        found, waiting = set(), [artifact]
        while waiting:
            source = waiting.pop()
            if source not in found:
                found.add(source)
                waiting += self.inputs_of(source)
        return found

    def newest(self, artifacts, kind):
        return max((artifact for artifact in artifacts if self.artifacts[artifact].type == kind), default=None)

    def line(self, start):
        """Return the pushes of the earlier trainings that an artifact descends from, oldest first, and then itself."""
        own = self.lineage(start)
        pushes = [
            artifact for artifact, item in self.artifacts.items() if item.type == "PushedModel" and artifact != start
        ]
        runs = {run for run in own if self.artifacts[run].type == "ModelRun"} - self.inputs_of(start)
        return [*(push for push in sorted(pushes) if self.inputs_of(push) & runs), start]


def number(text):
    """Return the number in a cell, which has commas between thousands."""
    return float(text.replace(",", ""))


def is_shown(value, text):
    """Return whether a cell shows the value.

    A number must have four significant digits, or all if it is whole. Of a list, every item must be in the text; of a
    mapping, every key and every value that is neither a number nor a mapping.
    """
    if isinstance(value, bool) or value is None:
        return text in ("-", str(value).lower())
    if isinstance(value, int | float):
        return number(text) == (value if float(value).is_integer() else float(f"{value:.4g}"))
    if isinstance(value, dict):
        plain = [item for item in value.values() if not isinstance(item, int | float | dict)]
        return is_in([*value, *plain], text)
    return is_in(value, text)


def is_in(value, text):
    return all(is_in(item, text) for item in value) if isinstance(value, list) else str(value) in text


def check_page(text, store, start):
    """Compare the page about the artifact `start` with the store and the files of its artifacts."""
    page, store = PageText(text), Store(store)
    line = store.line(start)
    lineage = set.union(*map(store.lineage, line))
    assert not page.loaded
    assert len(page.ids) == len(set(page.ids))
    assert set(page.links) <= {f"#{identifier}" for identifier in page.ids}
    assert {identifier for identifier in page.ids if identifier.startswith("artifact-")} == {
        f"artifact-{identifier}" for identifier in lineage
    }
    assert {f"#artifact-{artifact}" for artifact in lineage} <= set(page.links), "every artifact stands in a drawing"
    for artifact in lineage:
        check_artifact(page, store, artifact)
    check_model(page, store, line)
    if len(line) > 1:
        check_runs(page, store, line)
    return page


def check_artifact(page, store, artifact):
    place, item, facts = f"artifact-{artifact}", store.artifacts[artifact], store.facts(artifact)
    rows = {row[0]: row[1] for row in page.tables[place] if row[0] in ("uri", "made by", "made of", "content", "rows")}
    assert rows["uri"] == item.uri
    made = store.executions[store.maker[artifact]]
    seconds = (made.last_update_time_since_epoch - made.create_time_since_epoch) / 1000
    state = mlmd.Execution.State.Name(made.last_known_state)
    assert rows["made by"] == f"{store.node[made.id]}, execution {made.id}, {seconds:.1f} s ({state})"
    assert set(page.linked.get((place, "made of"), ())) == {
        f"#artifact-{source}" for source in store.inputs_of(artifact)
    }
    if "content" in facts:
        content, files = facts["content"], [path for path in Path(item.uri).rglob("*") if path.is_file()]
        assert f"{len(files):,} files" in rows["content"]
        assert content["size"] == sum(file.stat().st_size for file in files)
        assert content["digest"] in rows["content"]
    if "ingest" in facts:
        splits = facts["ingest"]["splits"]
        said = [f"{facts['ingest']['rows_read']:,} read", *(f"{rows:,} to {split}" for split, rows in splits.items())]
        assert rows["rows"] == ", ".join(said)
        check_files(page, place, Path(f"{item.uri}.lineage.json"))
    for key, shown in page.tables[place]:
        if key.replace(" ", "_") in facts and key not in rows:
            assert is_shown(facts[key.replace(" ", "_")], shown), (artifact, key, shown)


def check_files(page, place, record):
    named = {file["path"]: file["size"] for file in json.loads(record.read_text())["files"]}
    shown = {row[0]: int(number(row[1])) for row in page.tables[place] if row[0] in named}
    assert shown == named == {path: Path(path).stat().st_size for path in named}


def vocabularies(store, push):
    """Return the tokens of each vocabulary of a push, read from its text files, and the folder of these files."""
    folder = Path(store.artifacts[store.newest(store.lineage(push), "components.Vocabularies")].uri)
    return {path.stem: path.read_bytes().splitlines() for path in sorted(folder.glob("*.txt"))}, folder


def check_model(page, store, line):
    tokens, folder = vocabularies(store, line[-1])
    earlier = vocabularies(store, line[-2])[0] if len(line) > 1 else {}
    loaded = load_vocabularies(folder)
    rows = {row[0]: row[1:] for row in page.tables["Vocabularies"][1:]}
    assert set(rows) == set(tokens)
    for name, row in rows.items():
        assert number(row[0]) == len(tokens[name])
        assert row[1] == f"{100 * loaded[name].coverage:.2f}%"
        digest = hashlib.sha256((folder / f"{name}.txt").read_bytes()).hexdigest()
        assert row[2] == digest[:12]
        if name in earlier:
            now, then = set(tokens[name]), set(earlier[name])
            assert [number(cell) for cell in row[3:6]] == [len(now - then), len(then - now), len(now & then)]
            shown = "".join(row[6:8])
            assert not (loaded[name].private and shown)
            for token in sorted(
                (candidate.decode(errors="backslashreplace") for candidate in now ^ then), key=len, reverse=True
            ):
                shown = shown.replace(token, "")
            assert not shown.strip(", "), "only tokens that came or went are shown"
    own = store.lineage(line[-1])
    plan = json.loads(Path(store.artifacts[store.newest(own, "components.TableConfigs")].uri, "plan.json").read_text())
    for row in page.tables["Tables"][1:]:
        table = plan["tables"][row[0]]
        assert [number(cell) for cell in row[1:4]] == [
            table["rows"], table["dim"], table["table_bytes"] + table["slot_bytes"],
        ]  # fmt: skip
    runs = [store.facts(store.newest(store.lineage(push), "ModelRun")) for push in line[-2:]]
    for row in page.tables["The model"][1:]:
        values = [run[row[0].replace(" ", "_")] for run in reversed(runs)]
        assert all(is_shown(value, cell) for value, cell in zip(values, row[1:], strict=False)), row


def check_runs(page, store, line):
    """Compare the tables with a row per run with the files and the store."""
    rows, height = page.tables["From run to run"], 1 + len(line)
    runs, sizes, *others = (rows[at : at + height] for at in range(0, len(rows), height))
    before = {}
    for place, push in enumerate(line, start=1):
        row, lineage = runs[place], store.lineage(push)
        facts = {kind: store.facts(store.newest(lineage, kind)) for kind in ("Examples", "ModelRun", "PushedModel")}
        tokens, folder = vocabularies(store, push)
        assert sizes[0] == ["run", *tokens]
        assert row[0] == str(place)
        assert row[1] == str(facts["PushedModel"]["pushed_version"])
        assert number(row[3]) == facts["Examples"]["ingest"]["splits"]["train"]
        assert is_shown(facts["ModelRun"]["eval_auc"], row[4])
        for (name, mine), cell in zip(tokens.items(), sizes[place][1:], strict=True):
            expected = f"{len(mine):,}"
            if before and load_vocabularies(folder)[name].evolution is not None:
                came, went = len(set(mine) - set(before[name])), len(set(before[name]) - set(mine))
                expected += f" +{came:,}" + (f" -{went:,}" if went else "")
            assert cell == expected, (place, name)
        shares = [[cell for table in others for cell in table[at][1:]] for at in (place, 0)]
        check_shares(*shares, store.facts(store.newest(lineage, "components.Vocabularies")), lineage, store)
        before = tokens


def check_shares(cells, names, facts, lineage, store):
    drift = {name: change for each in facts["vocabularies"].values() for name, change in each.get("drift", {}).items()}
    loaders = [artifact for artifact in lineage if store.node[store.maker[artifact]] == "CheckpointLoader"]
    kept = store.facts(max(loaders))["remap"] if loaders else {}
    half = len(drift) or len(cells) - len(kept)
    shares = [drift.get(name, {}).get("new_rows") for name in names[:half]]
    shares += [kept.get(name, {}).get("kept_traffic") for name in names[half:]]
    assert cells == ["-" if share is None else f"{100 * share:.1f}%" for share in shares]
