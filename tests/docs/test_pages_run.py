"""Runs every command of README and docs, and the Python of the pages about serving, as a reader would.

The campaign `pages` runs them with the checkout, `make release-check` from the installed wheel, whose Python is
RELEASE_PYTHON.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from code_blocks import ROOT, block_with, blocks_of, pages
from reader import CONFIG, Reader, artifacts_of, commands_of_page, write_day

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

COMPILER = "--compiler tpu"  # needs TPU_COMPILER_PYTHON; the campaign `tpu-compiler` compiles every example
SPANS = "data.spans.first=2026-01-14"
CHECKPOINTS = "runs/my_config/artifacts/CheckpointRetriever/embedding_checkpoint"
CONFIGS = "runs/my_config/artifacts/TableConfigGen/table_configs"
TUTORIAL, SECOND_DAY = "docs/tutorial.md", "docs/second_day.md"
SERVING, SHADOW, DELTAS = "docs/serving.md", "docs/shadow.md", "docs/deltas.md"
RETRIEVAL_PAGE = "docs/retrieval.md"
RETRIEVAL = """
data: {path: "clicks/{YYYY}-{MM}-{DD}.csv"}
label: {kind: positive}
features: {categorical: [user, item]}
model: {name: two_tower, arguments: {query_features: [user], candidate_features: [item]}}
training: {softmax: item, epochs: 1}
evaluation: {thresholds: {Recall@10: {min: 0.0}}}
"""


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """Return a reader of README and commands: three versions, of which the last is a rollback's."""
    reader = Reader(tmp_path_factory.mktemp("reader"))
    for day in ("2026-01-12", "2026-01-13"):
        write_day(reader.folder / "clicks", day)
    write_parquet(reader, "2026-01-13")
    for line in dict.fromkeys(commands_of_page("README.md") + commands_of_page("docs/commands.md")):
        if SPANS in line:
            write_day(reader.folder / "clicks", "2026-01-14")
        reader.run(line)
        if line.startswith("run") and SPANS in line:  # the other runs read the first two days
            (reader.folder / "clicks/2026-01-14.csv").rename(reader.folder / "2026-01-14.csv")
    earlier, *_, later = artifacts_of(reader.folder / CHECKPOINTS)
    for name, checkpoint in (("EARLIER", earlier), ("LATER", later), ("CHECKPOINT", later)):
        reader.link(name, checkpoint)
    reader.link("served", "runs/my_config/serving")
    return reader


def write_parquet(reader, day):
    from pyarrow import csv, parquet

    folder = reader.folder / "clicks"
    parquet.write_table(csv.read_csv(folder / f"{day}.csv"), folder / "part.parquet")


def test_environment_is_the_wheels(tmp_path):
    if "RELEASE_PYTHON" not in os.environ:
        pytest.skip("no environment with the wheel is given: run `make release-check`")
    show = "import embedding_core, sys; print(embedding_core.__file__, sys.version.split()[0])"
    where, version = Reader(tmp_path).call("python", "-c", show).split()
    assert "site-packages" in where
    assert not Path(where).is_relative_to(ROOT / "embedding_core")
    assert version.rpartition(".")[0] == ".".join(map(str, sys.version_info[:2]))


def test_commands_of_the_readme(readme):
    assert {*commands_of_page("README.md"), *commands_of_page("docs/commands.md")} <= set(readme.ran)
    assert len(readme.versions()) >= 3
    assert (readme.folder / "lineage.html").read_text().startswith("<!doctype html>")


def test_commands_of_the_tutorial_and_of_the_second_day(tmp_path):
    reader = Reader(tmp_path)
    write_day(tmp_path, "clicks")
    for line in [*commands_of_page(TUTORIAL), *commands_of_page(SECOND_DAY)]:
        if SPANS in line:
            write_day(tmp_path / "days", "2026-01-14")
            file = tmp_path / "my_project/pipeline.yaml"
            file.write_text(
                re.sub(r"[^\s\"]*clicks\.csv", str(tmp_path / "days/{YYYY}-{MM}-{DD}.csv"), file.read_text())
            )
        reader.run(line)
    assert len(reader.versions()) == 2
    assert "serving_default" in reader.execute(TUTORIAL, "model.signatures", "")


@pytest.mark.parametrize(
    ("page", "folder"),
    [
        *((f"docs/{page}.md", CHECKPOINTS) for page in ("data", "lineage", "checkpoints", "faults")),
        ("kubeflow/README.md", CHECKPOINTS),
        *((f"docs/{page}.md", CONFIGS) for page in ("sparsecore_limits", "preflight", "placement")),
    ],
)
def test_commands_of_a_page(readme, page, folder):
    readme.link("FOLDER", artifacts_of(readme.folder / folder)[-1])
    readme.follow_page(page, [] if "TPU_COMPILER_PYTHON" in os.environ else [COMPILER])


def test_follow_runs_with_its_pages_configuration_until_stopped(tmp_path):
    (block,) = (block for block in blocks_of("docs/follow.md") if block.language == "yaml")
    reader = Reader(tmp_path, yaml.safe_dump({**yaml.safe_load(CONFIG), **yaml.safe_load(block.text)}))
    write_day(tmp_path / "events", "1")
    (line,) = commands_of_page("docs/follow.md")
    with open(tmp_path / "log", "w") as log:
        command = [reader.python.with_name("tfx-embeddings"), *line.split()]
        following = subprocess.Popen(command, cwd=tmp_path, env=reader.environment, stdout=log, stderr=log)
        try:
            until(lambda: reader.versions() or following.poll() is not None, 300)
            write_day(tmp_path / "events", "2")
            until(lambda: len(reader.versions()) == 2 or following.poll() is not None, 300)
            following.send_signal(signal.SIGTERM)
            following.wait(60)
        finally:
            following.kill()
    reader.note(line)
    assert len(reader.versions()) == 2, (tmp_path / "log").read_text()[-3000:]


def until(happened, seconds):
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.2)
    assert happened()


def test_a_version_is_queried_served_recorded_and_compared(readme):
    """The commands of docs/serving.md and docs/shadow.md on versions, and their Python in between."""
    readme.link("runs/taxi", "runs/my_config")
    rows = "import numpy as np, tensorflow as tf\nexample = tf.train.Example()\n" + "".join(
        f"example.features.feature[{name!r}].{kind}.value.append({value!r})\n"
        for name, kind, value in (
            ("user", "bytes_list", b"u1"),
            ("item", "bytes_list", b"i2"),
            ("price", "float_list", 2.5),
        )
    )
    printed = readme.execute(SERVING, 'model.signatures["serving_default"](', rows, "print(model.signatures)")
    assert "serving_default" in printed
    shutil.copytree(readme.folder / "runs/my_config/serving", readme.folder / "models/taxi")
    (readme.folder / "logs").mkdir(exist_ok=True)  # `checkpoint extract` of another page wrote into it
    request = """
import glob
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2
(*_, file) = sorted(glob.glob("runs/taxi/serving/*/assets.extra/tf_serving_warmup_requests"))
logs = [prediction_log_pb2.PredictionLog.FromString(one.numpy()) for one in tf.data.TFRecordDataset(file)]
"""
    readme.execute(
        SHADOW, "prediction_log_pb2", request, "for log in logs: record(log.predict_log.request)\nwriter.close()"
    )
    readme.follow_page(SHADOW)
    readme.follow_page(SERVING)
    assert (readme.folder / "models/taxi/config.pbtxt").is_file()
    assert (readme.folder / "OUT1").is_dir()


@pytest.mark.room("deltas")
def test_deltas_reach_a_server(tmp_path):
    """The first block of docs/deltas.md: a version, a delta beside it, and a server that gets it."""
    from tests.deltas.rest_server import serving

    without_means = CONFIG.replace("dense: [price], ", "")  # which change each day, and with them the graph
    # A day of these clicks changes every row, so that its delta is as large as the model.
    deltas = "name: x\npush: {deltas: {max_share: 2}}\nwarm_start: pushed\nvocabulary_evolution: pushed\n"
    reader = Reader(tmp_path, without_means + deltas)
    reader.variables["TFX_EMBEDDINGS_DELTA_SECRET"] = secret = secrets.token_hex(32)
    block = block_with(DELTAS, "serve-delta")
    run, serve, verify = (line for line in commands_of_page(DELTAS) if line in block.text.replace("\\\n", ""))
    write_day(tmp_path / "clicks", "2026-01-13")
    reader.run(run)
    write_day(tmp_path / "clicks", "2026-01-14")
    reader.run(f"{run} --set data.spans.first=2026-01-14 --set data.spans.last=2026-01-14")
    (version,) = reader.versions()
    with serving(tmp_path / "runs/x/serving" / version) as server:
        assert "1 delta" in reader.run(serve.replace("http://localhost:8501", server.address))
    reader.note(serve)
    reader.run(verify)
    before = f"import tensorflow as tf\nfrom components.deltas.client import *\nsecret = {secret!r}.encode()"
    reader.execute(DELTAS, "newest_chain", before)


def test_query_with_filters_finds_candidates(tmp_path):
    reader = Reader(tmp_path, RETRIEVAL)
    write_day(tmp_path / "clicks", "2026-01-13")
    reader.run("run my_config.yaml")
    model = (
        "import glob, tensorflow as tf\nmodel = tf.saved_model.load(max(glob.glob('runs/my_config/serving/[0-9]*')))"
    )
    printed = reader.execute(RETRIEVAL_PAGE, "top_k_filtered", model, "print(found['tokens'].numpy().tolist())")
    assert "b'i" in printed
    assert "b'i4'" not in printed


def test_every_command_of_every_page_ran(request):
    """Needs the tests above it, so it is skipped if only some of them are selected."""
    if request.config.option.keyword or any("::" in argument for argument in request.config.args):
        pytest.skip("not all tests of this file are selected")
    left = {line for page in pages() for line in commands_of_page(page)} - Reader.everything
    assert {line for line in left if COMPILER not in line} == set()
