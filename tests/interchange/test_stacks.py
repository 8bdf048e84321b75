"""Tests that a work_dir which one stack wrote is continued by the other: two days, on each pair of TFX 1.16 and 1.21.

The environment variable OTHER_STACK is a command that starts the other stack's Python in a checkout of this project,
and sees the folder SHARED under the same path, because ML Metadata holds absolute paths. The campaign
`interchange` sets it.
"""

import csv
import json
import math
import os
import random
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

OTHER = os.environ.get("OTHER_STACK", "")
pytestmark = [
    pytest.mark.room("deltas"),
    pytest.mark.slow,
    pytest.mark.tfx,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not OTHER, reason="OTHER_STACK is not set: no command that starts the other stack's Python"),
]

CONFIG = """
data: {path: "days/{SPAN}/rows.csv"}
label: {column: mood, kind: multiclass}
split: {by: column, column: part, train: [a], eval: [b]}
features:
  categorical: [item, shop, {name: seen, separator: " ", max_sequence_length: 3, vocabulary: item}]
  dense: [{name: price, log1p: true}]
training: {epochs: 1, batch_size: 16, checkpoint_every: 5, early_stopping: null}
evaluation: {metrics: [CategoricalAccuracy], min_rows: 50, baseline: pushed}
warm_start: pushed
vocabulary_evolution: pushed
push: {deltas: {max_share: 9}}
"""
SECRET = "a secret of the tests, 32 bytes."
STACKS = {"this": [sys.executable], "other": shlex.split(OTHER)}


def write_day(folder, day):
    chance = random.Random(day)
    rows = []
    for number in range(400):
        item, *seen = (chance.randrange(20 * day, 20 * day + 30) for _ in range(chance.randrange(1, 5)))
        price = chance.choice(["", round(math.exp(chance.gauss(1, 2)), 3)])
        mood = ["bad", "ok", "žluť"][item % 3]
        part = "b" if number % 5 == 0 else "a"
        rows.append([f"i{item}", f"s{item % 4}", " ".join(f"i{token}" for token in seen), price, mood, part])
    (folder / "days" / str(day)).mkdir(parents=True)
    with open(folder / "days" / str(day) / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["item", "shop", "seen", "price", "mood", "part"], *rows])


def follow(stack, folder):
    """Train and push the days that have arrived, on one stack; return what was pushed."""
    environment = {**os.environ, "SHARED": str(folder.parent), "TFX_EMBEDDINGS_DELTA_SECRET": SECRET}
    arguments = ["-m", "pipelines.commands.cli", "follow", "--until-idle", str(folder / "my.yaml")]
    done = subprocess.run([*STACKS[stack], *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "runs/my/report/report.json").read_text())["push"]["version"]


def made(folder, examples):
    """Return the files of all vocabularies, and all tables, slots and answers of a server that took the delta."""
    from components.deltas.client import apply_chain, newest_chain
    from embedding_core.deltas.served_state import LoadedVersion

    artifacts, serving = folder / "runs/my/artifacts", str(folder / "runs/my/serving")
    files, values = {}, {}
    for path in (*artifacts.glob("VocabularyGen/*/*/*.*"), *artifacts.glob("*/*/*/vocabularies/*.*")):
        files[str(path.relative_to(artifacts))] = path.read_bytes()
    for manifest in artifacts.glob("*/embedding_checkpoint/*/manifest.json"):
        place, reader = manifest.parent, tf.train.load_checkpoint(str(manifest.parent / "tables"))
        for key in reader.get_variable_to_shape_map():
            values[f"{place.relative_to(artifacts)} {key}"] = reader.get_tensor(key)
    number, first, chain = newest_chain(serving)
    with LoadedVersion(f"{serving}/{number}") as served:
        apply_chain(lambda **inputs: served.call("apply_delta", **inputs), first, chain, SECRET.encode())
        values |= {f"answer {key}": value for key, value in served.answer("serving_default", examples).items()}
    values["bytes of deltas"] = np.array([len(link.content) for link in chain])
    return files, values


def test_second_day_on_the_other_stack_gives_the_same(tmp_path):
    """Compare every pair with both days on this stack. A work_dir has the same path in each run; results are moved."""
    work, done = tmp_path / "work", {}
    for first in STACKS:
        work.mkdir()
        (work / "my.yaml").write_text(CONFIG)
        write_day(work, 1)
        version = follow(first, work)
        write_day(work, 2)
        work.rename(tmp_path / first)
        for second in STACKS:
            shutil.copytree(tmp_path / first, work)
            assert follow(second, work) == f"{version}-delta-1"
            done[f"{first}, {second}"] = work.rename(tmp_path / f"{first} {second}")
    parts = done["this, this"].glob("runs/my/artifacts/ExampleGen/examples/*/Split-eval/*.gz")
    records = tf.data.TFRecordDataset(sorted(map(str, parts)), "GZIP")
    results = {pair: made(folder, [record.numpy() for record in records]) for pair, folder in done.items()}
    expected_files, expected = results.pop("this, this")
    for pair, (files, values) in results.items():
        assert files == expected_files, pair
        assert values.keys() == expected.keys(), pair
        numbers = [key for key, value in values.items() if value.dtype != object and key != "bytes of deltas"]
        furthest = max(float(np.max(np.abs(values[key] - expected[key]))) for key in numbers)
        print(f"{pair}: {len(files)} files are equal; {len(numbers)} arrays differ by {furthest:.2g} at most")
        for key in expected:
            if key in numbers:
                np.testing.assert_allclose(values[key], expected[key], rtol=1e-5, atol=1e-6, err_msg=f"{pair} {key}")
            elif key != "answer model_digest":
                np.testing.assert_array_equal(values[key], expected[key], err_msg=f"{pair} {key}")
