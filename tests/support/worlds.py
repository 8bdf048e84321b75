"""Makes random models that change as trained ones do, exports them, and asks them.

A world has tables of several dims and kinds: tokens with no, one and three rows for unknown ones, and raw ids. Its
`step` changes rows, adds tokens, removes others, and reorders a vocabulary, as a training on newer data does.
"""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf
import tf_keras

from embedding_core.columns import DenseInputs
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.model_inputs import model_inputs
from embedding_core.serving import export_model
from tests.support.tf_examples import example
from tests.support.vocabularies import write_tokens

DENSE = DenseInputs(names=("price",), spec={"price": tf.io.FixedLenFeature([], tf.float32, 0.5)})
TABLES = {"words": (4, 3), "strict": (3, 0), "items": (4, 1), "ids": (2, None)}  # dim, rows for unknown tokens
FEATURES = (
    FeatureConfig(name="word", table="words", column=ColumnConfig(name="word")),
    FeatureConfig(name="pieces", table="words", column=ColumnConfig(name="pieces", separator="|")),
    FeatureConfig(name="list", table="strict", column=ColumnConfig(name="list", multivalent=True)),
    FeatureConfig(
        name="path", table="items", max_sequence_length=3, column=ColumnConfig(name="path", multivalent=True)
    ),
    FeatureConfig(name="item", table="items", column=ColumnConfig(name="item")),
    FeatureConfig(name="raw_ids", table="ids"),
)
IDS = 9


def model_of(config):
    embeddings, dense = model_inputs(config, DENSE.names)
    flat = [tf_keras.layers.Flatten()(value) for value in embeddings.values()]
    hidden = tf_keras.layers.Dense(5, activation="relu")(tf_keras.layers.Concatenate()([*flat, *dense.values()]))
    return tf_keras.Model([embeddings, dense], tf_keras.layers.Dense(1)(hidden))


@dataclasses.dataclass
class World:
    """A model: tokens in the order of their rows, rows by table, and dense weights."""

    generator: np.random.Generator
    tokens: dict
    rows: dict
    weights: list
    numbers: itertools.count

    @classmethod
    def of(cls, seed, size=12):
        generator, numbers = np.random.default_rng(seed), itertools.count()
        tokens = {
            name: [b"t%d" % next(numbers) for _ in range(size)] for name, (_, oov) in TABLES.items() if oov is not None
        }
        world = cls(generator, tokens, {}, [], numbers)
        for name, (dim, oov) in TABLES.items():
            count = IDS if oov is None else size + oov
            world.rows[name] = generator.normal(size=[count, dim]).astype(np.float32)
        world.weights = [generator.normal(size=value.shape).astype(np.float32) for value in world.model().weights]
        return world

    def config(self):
        tables = []
        for name, (dim, oov) in TABLES.items():
            words = {} if oov is None else {"vocabulary": name, "oov_rows": oov}
            tables.append(TableConfig(name=name, vocabulary_size=len(self.rows[name]), dim=dim, **words))
        return EmbeddingConfig(tables=tuple(tables), features=FEATURES)

    def model(self):
        model = model_of(self.config())
        if self.weights:
            model.set_weights(self.weights)
        return model

    def step(self, came=2, went=1, changed=3, dense=True, order=False):
        """Change the model in place: the number of tokens that come and go, and of rows that change, by table."""
        draw = self.generator
        for name, (dim, oov) in TABLES.items():
            if oov is not None:
                known = self.tokens[name]
                gone = {known[place] for place in draw.choice(len(known), min(went, len(known) - 1), replace=False)}
                kept = [place for place, token in enumerate(known) if token not in gone]
                if order:
                    draw.shuffle(kept)
                fresh = [b"t%d" % next(self.numbers) for _ in range(came)]
                added = draw.normal(size=[came, dim]).astype(np.float32)
                unknown = self.rows[name][len(known) :]
                self.rows[name] = np.concatenate([self.rows[name][kept], added, unknown])
                self.tokens[name] = [known[place] for place in kept] + fresh
            rows = self.rows[name]
            places = draw.choice(len(rows), min(changed, len(rows)), replace=False)
            rows[places] = draw.normal(size=[len(places), dim]).astype(np.float32)
        if dense:
            self.weights = [draw.normal(size=value.shape).astype(np.float32) for value in self.weights]

    def export(self, folder, form=None, rows_dtype="float32"):
        """Export the model to a new folder, and return the folder."""
        folder.mkdir(parents=True)
        tokens = {f"{folder.name}-{name}": tokens for name, tokens in self.tokens.items()}
        files = dict(zip(self.tokens, write_tokens(folder.parent, tokens).values(), strict=True))
        export_model(
            folder, config=self.config(), tables=self.rows, vocabularies=files, model=self.model(), dense=DENSE,
            rows_dtype=rows_dtype, signatures=("embeddings",), form=form,
        )  # fmt: skip
        return folder

    def requests(self, count=40):
        """Make rows that ask for tokens that are there, that came, went, or never were; serialized tf.Examples."""
        draw = self.generator
        upto = next(self.numbers)
        rows = []
        for _ in range(count):
            row = {"raw_ids": draw.integers(-1, IDS + 1, 2).tolist(), "price": float(draw.normal())}
            for name, most in {"word": 1, "pieces": 5, "list": 4, "path": 4, "item": 1}.items():
                texts = [b"t%d" % number for number in draw.integers(0, upto + 3, draw.integers(0, most + 1))]
                row[name] = b"|".join(texts) if name == "pieces" else texts
            rows.append(example({name: values for name, values in row.items() if values != []}))
        return rows
