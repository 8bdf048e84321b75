"""Makes synthetic daily data and the configuration of its runs, and summarizes the result of a chain of runs."""

import csv
import hashlib
import json
import random

CONFIG = """
data: {path: "days/{SPAN}/rows.csv"}
label: bought
split: {by: column, column: part, train: [a], eval: [b]}
features: {categorical: [item, shop]}
training: {epochs: 1, batch_size: 16, checkpoint_every: 5, early_stopping: null}
evaluation: {metrics: [AUC], min_rows: 50}
warm_start: pushed
vocabulary_evolution: pushed
"""
PRICED = CONFIG.replace("[item, shop]", "[item, shop], dense: [price]")
DAY = {day: [f"data.spans={{first: {day}, last: {day}}}"] for day in (1, 2, 3)}


def write_day(folder, day, items, *, priced=False):
    """Write 300 rows, with labels that depend on the item alone; return the items of the train split."""
    chance = random.Random(day)
    rows = []
    for number in range(300):
        item = chance.choice(items)
        row = [f"i{item}", f"s{chance.randrange(4)}", int(item % 3 == 0), "b" if number % 5 == 0 else "a"]
        rows.append([*row, 1 + (number + day) % 7] if priced else row)
    header = ["item", "shop", "bought", "part", *["price"] * priced]
    (folder / "days" / str(day)).mkdir(parents=True)
    with open(folder / "days" / str(day) / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return {row[0] for row in rows if row[3] == "a"}


def chain_of(folder):
    """Summarize the run that was pushed last and the chain of trainings behind it.

    Returns:
      The sha256 of rows and slots by token, the number of rows of each table, the spans of each training in the chain,
      and the numbers of trainings and of served versions.
    """
    import tensorflow as tf

    from pipelines.config import load_config
    from pipelines.previous.finished_trainings import finished_trainings, trainings_behind
    from pipelines.previous.trained_data import trained_data

    runs = finished_trainings(load_config(folder / "my.yaml"))
    newest = next(runs.candidates("pushed"))
    checkpoint = runs.checkpoint_of(newest)
    reader = tf.train.load_checkpoint(f"{checkpoint.uri}/tables")
    rows = {}
    for name in ("item", "shop"):
        with open(f"{checkpoint.uri}/vocabularies/{name}.txt") as file:
            tokens = [*file.read().split(), "<unknown>"]
        for key in (name, f"{name}/accumulators"):
            values = reader.get_tensor(key)
            assert len(values) == len(tokens)
            rows[key] = {token: row.tobytes().hex() for token, row in zip(tokens, values, strict=True)}
    spans = [
        [piece.span for piece in trained_data(examples).pieces]
        for _, examples in trainings_behind(runs, checkpoint.uri)
    ]
    return {
        "rows": hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest(),
        "tokens": {name: len(rows[name]) for name in ("item", "shop")},
        "spans": spans,
        "trainings": sum(node.type == "ModelRun" for node in runs.graph.values()),
        "versions": len(list((folder / "runs/my/serving").glob("[0-9]*"))),
    }
