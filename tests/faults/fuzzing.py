"""Sends mutated tf.Examples to an exported model, each in a batch with a good row.

``python -m tests.faults.fuzzing <folder> <signature> <first> <count>`` scores mutants and prints a letter for each as
soon as it is known: `s` the good row gets its usual answer, `e` the batch is an error, `r` Python's parser refused the
mutant, `u` the mutant fits no tensor, and `W` the good row gets a wrong answer. A process that dies prints no more.
`export` writes the model.
"""

import os
import random
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tf_keras
from google.protobuf.message import DecodeError

from embedding_core.columns import DenseInputs
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine
from embedding_core.model_inputs import model_inputs
from embedding_core.serving import columns_of, export_model, named_inputs
from tests.support.tf_examples import example
from tests.support.vocabularies import write_tokens

WORDS = [b"a", b"b", b"c", b"word"]
CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="words", dim=4, vocabulary="words", vocabulary_size=6, oov_rows=2),
        TableConfig(name="ids", vocabulary_size=50, dim=3),
    ),
    features=(
        FeatureConfig(name="word", table="words", column=ColumnConfig(name="word")),
        FeatureConfig(name="list", table="words", column=ColumnConfig(name="list", multivalent=True)),
        FeatureConfig(
            name="path", table="words", column=ColumnConfig(name="path", separator=" "), max_sequence_length=2
        ),
        FeatureConfig(name="id", table="ids", column=ColumnConfig(name="id", dtype="int64")),
        FeatureConfig(name="ids", table="ids", column=ColumnConfig(name="ids", dtype="int64", multivalent=True)),
        FeatureConfig(name="float", table="words", column=ColumnConfig(name="float", dtype="float32")),
    ),
)
DENSE = DenseInputs(
    names=("price", "count"),
    spec={"price": tf.io.FixedLenFeature([], tf.float32, 0.0), "count": tf.io.FixedLenFeature([], tf.int64, 0)},
)
ROW = {"word": b"a", "list": [b"b", b"nope", b"c"], "path": b"a b c", "id": 7, "ids": [3, 49, 3], "float": 0.5}
ROW |= {"price": 2.5, "count": 4}
GOOD = example(ROW)


def mutant(number):
    """The good row with one to four changes to its bytes."""
    random_ = random.Random(number)
    data = bytearray(GOOD)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(data))
        change = random_.randrange(5)
        if change == 0:
            data[at] ^= 1 << random_.randrange(8)
        elif change == 1:
            data[at] = random_.randrange(256)
        elif change == 2:
            del data[at : at + random_.randint(1, 8)]
        elif change == 3:
            data[at:at] = random_.randbytes(random_.randint(1, 8))
        else:
            start = random_.randrange(len(data))
            data[at:at] = data[start : start + random_.randint(1, 40)]
        data = data or bytearray(b"\0")
    return bytes(data)


def export(folder):
    """Export a model: one dense layer over all inputs."""
    embeddings, dense = model_inputs(CONFIG, DENSE.names)
    flat = [tf_keras.layers.Flatten()(value) for value in (*embeddings.values(), *dense.values())]
    model = tf_keras.Model([embeddings, dense], tf_keras.layers.Dense(1)(tf_keras.layers.Concatenate()(flat)))
    tables, files = HostEngine(CONFIG, with_slots=False).embedding_tables, write_tokens(folder, {"words": WORDS})
    export_model(folder / "model", config=CONFIG, tables=tables, vocabularies=files, model=model, dense=DENSE)


def by_examples(signature, expected, row):
    """Send a mutant as a serialized example; return its letter."""
    try:
        logit = signature(examples=tf.constant([GOOD, row]))["logit"]
    except (tf.errors.OpError, UnicodeDecodeError):  # the latter if the parser's message quotes bytes of the row
        return "e"
    return "s" if np.array_equal(logit[0], expected) else "W"


def by_tensors(signature, expected, row):
    """Read a mutant with Python's parser, send it as named tensors, and return its letter."""
    try:
        tf.train.Example.FromString(row)
    except DecodeError:
        return "r"
    named, kept = named_inputs(columns_of(CONFIG, DENSE), [GOOD, row])
    if kept != [0, 1]:
        return "u"
    logit = signature(**{name: tf.constant(value) for name, value in named.items()})["logit"]
    return "s" if np.array_equal(logit[0], expected) else "W"


def main(folder, signature, first, count):
    """Score mutants `first` .. `first + count - 1`."""
    loaded = tf.saved_model.load(os.path.join(folder, "model")).signatures
    expected = loaded["serving_default"](examples=tf.constant([GOOD, GOOD]))["logit"].numpy()[0]
    send = by_examples if signature == "serving_default" else by_tensors
    for number in range(int(first), int(first) + int(count)):
        sys.stdout.write(send(loaded[signature], expected, mutant(number)))
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
