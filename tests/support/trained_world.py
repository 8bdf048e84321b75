"""Makes the trained world: small models that real pipelines trained, made once and read by all tests that need one.

Ask for it by the session fixtures of `tests/conftest.py`, each a `TrainedPipeline`:

* `ranking_days`: the model "ranking" over the tables `item` and `shop` and the number `price`, with the configuration
  `PRICED` of `tests.support.two_days` in `folder/my.yaml`. Its work_dir has the runs of two days: the first is a cold
  start and pushed a version without deltas; the second starts from the first (rows, vocabularies, dense part), and its
  version takes deltas if the room `deltas` is installed.
* `two_tower`: the model "two_tower" over `user` and `item`, trained with a sampled softmax on rows of
  `folder/rows.csv` and judged by rankings without what a user has seen; one run, one pushed version.

    def test_version_has_its_signatures(ranking_days):
        version = tf.saved_model.load(str(ranking_days.version()))   # of the second day; `version(0)` of the first
        tables = ranking_days.artifact("CheckpointRetriever", "embedding_checkpoint")
        assert ranking_days.reports[0].push.pushed

The world is read-only. A test that continues it asks for `ranking_days.copy(tmp_path / "copy")`: a `TrainedPipeline`
whose metadata names the copied files, so that a further run starts from them.

The pipelines are in `build/trained_world/<key>`; the key is a digest of the code that makes them. The first process
that needs one makes it, and others wait; the next run of the suite finds it. Those with other keys are removed.
"""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import random
import shutil
import sqlite3
from pathlib import Path

from embedding_core.rooms import is_installed
from embedding_core.storage import environment_variable, locked_file
from tests.support.two_days import DAY, PRICED, write_day

ROOT = Path(__file__).parents[2]
WORLDS = ROOT / "build" / "trained_world"
PACKAGES = ("embedding_core", "components", "pipelines")
DELTA_SECRET = "a secret of the tests, 32 bytes."
REPORTS = "reports.json"  # written last: a pipeline without it is incomplete
TOWERS = {
    "data": {"path": "rows.csv"},
    "label": {"kind": "positive"},
    "split": {"by": "column", "column": "part", "train": ["a"], "eval": ["b"]},
    "features": {"categorical": ["user", "item"]},
    "model": {"name": "two_tower", "arguments": {"query_features": ["user"], "candidate_features": ["item"]}},
    "training": {
        "epochs": 2, "batch_size": 32, "early_stopping": None,
        "softmax": {"feature": "item", "sampled": 8, "temperature": 0.5},
    },
    "evaluation": {
        "metrics": ["AUC", "Recall@10", "NDCG@20"], "min_rows": 50, "exclude_seen": True, "user": "user",
        "thresholds": {"NDCG@20": {"min": 0.01, "min_over_popularity": -1}},
    },
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainedPipeline:
    """A pipeline that ran.

    Attributes:
      folder: holds the configuration `my.yaml`, its data, and its work_dir.
      reports: the report of each run, the first run first; as JSON has it, so tuples are lists.
    """

    folder: Path
    reports: list

    @property
    def work_dir(self):
        return self.folder / "runs" / "my"

    def config(self, *overrides):
        from pipelines.config import load_config

        return load_config(self.folder / "my.yaml", overrides)

    def artifact(self, node, key, run=-1):
        """Return the folder of a node's output, of the last run that executed it by default."""
        folders = [path for path in (self.work_dir / "artifacts" / node / key).iterdir() if path.name.isdigit()]
        return sorted(folders, key=lambda path: int(path.name))[run]

    def version(self, run=-1):
        """Return the folder of the version that a run pushed."""
        return Path(self.reports[run].push.destination)

    def copy(self, folder):
        """Copy the pipeline to a new folder that may be written to."""
        shutil.copytree(self.folder, folder)
        set_writable(folder, writable=True)
        old, new = str(self.folder), str(folder)
        for file in (folder / REPORTS, *folder.rglob("*.lineage.json")):
            file.write_text(file.read_text().replace(old, new))
        with contextlib.closing(sqlite3.connect(folder / "runs/my/metadata.sqlite")) as store, store:
            for table, column in TEXTS.items():
                store.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (old, new))
        return pipeline_in(folder)


# Columns of ML Metadata's tables that contain addresses.
TEXTS = {"Artifact": "uri", "ArtifactProperty": "string_value", "ExecutionProperty": "string_value"}


def pipeline_in(folder):
    from pipelines.report.run_report import Report, RunResult

    reports = json.loads((folder / REPORTS).read_text())
    return TrainedPipeline(folder, [Report(**{**report, "push": RunResult(**report["push"])}) for report in reports])


def set_writable(folder, *, writable):
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o200 if writable else mode & ~0o222)


@functools.cache
def world_key():
    """Return the digest of the code that makes the world."""
    made = hashlib.sha256()
    for name in ("tensorflow", "tfx"):
        made.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*")]
    files = [path for path in files if path.is_file() and path.suffix != ".pyc"]
    for path in [*sorted(files), Path(__file__), Path(__file__).with_name("two_days.py")]:
        made.update(f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return made.hexdigest()[:16]


def ranking_days():
    return ready("ranking_days", run_ranking_days)


def two_tower():
    return ready("two_tower", run_two_tower)


def ready(name, make):
    """Return a pipeline of the world. If nobody has made it, `make` runs it in a folder, and returns the reports."""
    folder = WORLDS / world_key() / name
    WORLDS.mkdir(parents=True, exist_ok=True)
    with locked_file(str(WORLDS / f"{name}.lock"), wait=True):
        if not (folder / REPORTS).exists():
            for other in (folder, *(path for path in WORLDS.glob(f"*/{name}") if path != folder)):
                if other.exists():
                    set_writable(other, writable=True)
                    shutil.rmtree(other)
            folder.mkdir(parents=True)
            reports = [dataclasses.asdict(report) for report in make(folder)]
            (folder / REPORTS).write_text(json.dumps(reports))
            set_writable(folder, writable=False)
    return pipeline_in(folder)


def run_ranking_days(folder):
    from pipelines.config import load_config
    from pipelines.local.run_local import run

    (folder / "my.yaml").write_text(PRICED)
    write_day(folder, 1, range(30), priced=True)
    write_day(folder, 2, range(10, 40), priced=True)
    deltas = ["push.deltas={max_share: 9}"] if is_installed("deltas") else []
    with environment_variable("TFX_EMBEDDINGS_DELTA_SECRET", DELTA_SECRET):
        return [run(load_config(folder / "my.yaml", given))[1] for given in (DAY[1], [*DAY[2], *deltas])]


def run_two_tower(folder):
    from pipelines.config import load_config
    from pipelines.local.run_local import run

    (folder / "my.yaml").write_text(json.dumps(TOWERS))  # JSON is YAML
    chance = random.Random(0)
    rows = []
    for number in range(400):
        user = chance.randrange(20)
        item = chance.randrange(20) if chance.random() < 0.2 else 2 * chance.randrange(10) + user % 2
        rows.append([f"u{user}", f"i{item}", "b" if number % 5 == 0 else "a"])
    with open(folder / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["user", "item", "part"], *rows])
    return [run(load_config(folder / "my.yaml"))[1]]
