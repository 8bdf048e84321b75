"""Compares the lookups of an exported model with TensorFlow's `serving_embedding_lookup`, on CPU, including parsing.

    python -m benchmarks.serving [--batches 1 32 512] [--rounds 9] [--load-tokens 10000000]

26 features, tables of 100,000 rows x 16, ids and tokens by a bounded Zipf law (s = 1.05). Each variant is a graph whose
only input is serialized tf.Examples; it is called through a session callable, as in TensorFlow Serving. The 26 vectors
are concatenated into one output, and those of "ours" and "upstream" are checked to be equal. All variants of a case
take turns in one process with one thread; figures are CPU times, medians over the rounds. "parsing" only reads the
columns; "bare" also looks up, but does not handle missing values and invalid ids.
"""

import argparse
import functools
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.measuring import ratio, resources, show, spent, table, take_turns
from benchmarks.zipf_examples import zipf
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.serving.export import signature_of_examples
from embedding_core.serving.serving_module import ServingModule

FEATURES, ROWS, DIM = 26, 100_000, 16
NAMES = [f"f{number:02d}" for number in range(FEATURES)]
CALLS = {1: 100, 32: 40, 512: 8}


def examples_of(case, batch, generator):
    """Make serialized tf.Examples with one id or token per feature, or one to five."""
    rows = []
    for _ in range(batch):
        example = tf.train.Example()
        for name in NAMES:
            count = int(generator.integers(1, 6)) if case.multivalent else 1
            ids = zipf(generator, ROWS - 1, count).tolist()  # the last row is for unknown tokens
            values = example.features.feature[name]
            if case.tokens:
                values.bytes_list.value.extend(b"token-%07d" % number for number in ids)
            else:
                values.int64_list.value.extend(ids)
        rows.append(example.SerializeToString())
    return np.array(rows, object)


class Case(NamedTuple):
    """One of the four cases: ids or tokens, one value or several."""

    tokens: bool
    multivalent: bool

    @property
    def dtype(self):
        """The type of a column."""
        return tf.string if self.tokens else tf.int64

    def __str__(self):
        return f"{'tokens' if self.tokens else 'ids'}, {'multivalent' if self.multivalent else 'single-valued'}"


def write_vocabulary(path, size):
    """Write a vocabulary of `size` tokens of 13 bytes."""
    with open(path, "wb") as file:
        for start in range(0, size, 1 << 14):
            file.write(b"".join(b"token-%07d\n" % number for number in range(start, min(size, start + (1 << 14)))))


def ours(case, tables, vocabulary, rows_dtype="float32"):
    """Build the signature `embeddings` of an exported model, with its outputs concatenated."""
    column = {"dtype": "string" if case.tokens else "int64", "multivalent": case.multivalent}
    table = {"vocabulary": "v", "oov_rows": 1} if case.tokens else {}
    config = EmbeddingConfig(
        tables=tuple(TableConfig(name=name, vocabulary_size=ROWS, dim=DIM, **table) for name in NAMES),
        features=tuple(
            FeatureConfig(name=name, table=name, column=ColumnConfig(name=name, **column)) for name in NAMES
        ),
    )
    module = ServingModule(config, dict(zip(NAMES, tables, strict=True)), {"v": vocabulary}, None, rows_dtype)
    columns = module.columns(NAMES)

    def look_up(examples):
        found = module.inputs_of(columns.parse(examples), NAMES)[0]
        return {"vectors": tf.concat([found[name] for name in NAMES], 1)}

    return module, signature_of_examples(look_up)


def upstream(case, tables, vocabulary):
    """Build TensorFlow's lookup and vocabulary tables as its documentation shows."""
    embedding = tf.tpu.experimental.embedding
    module = tf.Module()
    module.variables_ = [tf.Variable(table, trainable=False) for table in tables]
    module.vocabularies = [_their_vocabulary(vocabulary) for _ in NAMES] if case.tokens else []
    configs = {name: embedding.TableConfig(ROWS, DIM, name=name) for name in NAMES}
    features = {name: embedding.FeatureConfig(configs[name]) for name in NAMES}
    spec = {name: tf.io.VarLenFeature(case.dtype) for name in NAMES}

    def look_up(examples):
        ids = tf.io.parse_example(examples, spec)
        if case.tokens:
            ids = {name: table.lookup(ids[name]) for name, table in zip(NAMES, module.vocabularies, strict=True)}
        held = {configs[name]: value for name, value in zip(NAMES, module.variables_, strict=True)}
        found = embedding.serving_embedding_lookup(ids, None, held, features)
        return {"vectors": tf.concat([found[name] for name in NAMES], 1)}

    return module, signature_of_examples(look_up)


def _their_vocabulary(path):
    index = tf.lookup.TextFileIndex
    initializer = tf.lookup.TextFileInitializer(path, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    return tf.lookup.StaticVocabularyTable(initializer, 1)


def parsing(case, tables, vocabulary):
    """Build a function that only reads the columns: as [B] if they are single-valued, else as sparse tensors."""
    del tables, vocabulary
    single = tf.io.FixedLenFeature([], case.dtype, "" if case.tokens else 0)
    spec = dict.fromkeys(NAMES, tf.io.VarLenFeature(case.dtype) if case.multivalent else single)

    def parse(examples):
        found = tf.io.parse_example(examples, spec)
        values = [found[name].values if case.multivalent else found[name] for name in NAMES]
        return {"values": tf.add_n([tf.size(value) for value in values])}

    return tf.Module(), signature_of_examples(parse)


def bare(case, tables, vocabulary):
    """Build a lower bound: parsing, hashing and one operation per table, without any handling of bad rows."""
    module = tf.Module()
    module.variables_ = [tf.Variable(table, trainable=False) for table in tables]
    module.vocabularies = [_bare_vocabulary(vocabulary) for _ in NAMES] if case.tokens else []
    single = tf.io.FixedLenFeature([], case.dtype, "" if case.tokens else 0)
    spec = dict.fromkeys(NAMES, tf.io.VarLenFeature(case.dtype) if case.multivalent else single)

    def look_up(examples):
        read = tf.io.parse_example(examples, spec)
        found = []
        for number, name in enumerate(NAMES):
            values = read[name].values if case.multivalent else read[name]
            ids = module.vocabularies[number].lookup(values) if case.tokens else values
            table = module.variables_[number].read_value()
            if case.multivalent:
                rows = {"segment_ids": read[name].indices[:, 0], "num_segments": tf.size(examples)}
                found.append(tf.raw_ops.SparseSegmentMeanWithNumSegments(data=table, indices=ids, **rows))
            else:
                found.append(tf.gather(table, ids))
        return {"vectors": tf.concat(found, 1)}

    return module, signature_of_examples(look_up)


def _bare_vocabulary(path):
    index = tf.lookup.TextFileIndex
    initializer = tf.lookup.TextFileInitializer(path, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    return tf.lookup.StaticHashTable(initializer, ROWS - 1)


SIDES = {"ours": ours, "upstream": upstream, "parsing": parsing, "bare": bare}


class Served:
    """A SavedModel that is loaded into a session with one thread."""

    def __init__(self, build, case, tables, vocabulary):
        with tempfile.TemporaryDirectory() as folder:
            module, function = build(case, tables, vocabulary)
            tf.saved_model.save(module, folder, signatures=function)
            del module
            graph = tf.Graph()
            settings = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
            with graph.as_default():
                session = tf.compat.v1.Session(graph=graph, config=settings)
                meta = tf.compat.v1.saved_model.load(session, ["serve"], folder)
        signature = meta.signature_def["serving_default"]
        (given,), (wanted,) = signature.inputs.values(), signature.outputs.values()
        self.call = session.make_callable(graph.get_tensor_by_name(wanted.name), [graph.get_tensor_by_name(given.name)])
        self.nodes = len(function.graph.get_operations())


def measure(served, examples, rounds):
    """Return the CPU microseconds per call, one figure per round, by variant."""
    calls = CALLS.get(len(examples), 8)
    turns = {
        name: functools.partial(spent, lambda side=side: side.call(examples), calls) for name, side in served.items()
    }
    return {name: [1e6 * each.cpu for each in times] for name, times in take_turns(turns, rounds).items()}


def compare(case, options, vocabulary):
    """Measure one case; yield the cells of each batch size."""
    generator = np.random.default_rng(7)
    tables = [generator.normal(size=(ROWS, DIM)).astype(np.float32) for _ in NAMES]
    served = {name: Served(build, case, tables, vocabulary) for name, build in SIDES.items()}
    nodes = ", ".join(f"{name} {side.nodes}" for name, side in served.items())
    print(f"nodes of the signature, {case}: {nodes}", flush=True)
    for batch in options.batches:
        examples = examples_of(case, batch, generator)
        np.testing.assert_allclose(served["ours"].call(examples), served["upstream"].call(examples), 1e-5, 1e-6)
        times = measure(served, examples, options.rounds)
        middle = (f"{statistics.median(times[name]):.0f}" for name in SIDES)
        yield [str(case), str(batch), *middle, *(ratio(times["ours"], times[name]) for name in list(SIDES)[1:])]


def load(tokens, folder):
    """Print the memory and CPU time of loading a vocabulary in this process."""
    from embedding_core.columns import TokenTable

    path = str(Path(folder) / "large.txt")
    write_vocabulary(path, tokens)
    held = []
    figures = resources(lambda: held.append(TokenTable(path, tokens + 1, 1)))
    assert held[0].ids_of(tf.constant([b"token-%07d" % (tokens - 1), b"?"])).numpy().tolist() == [tokens - 1, tokens]
    grown = figures["peak_mb"] * 2**20 / tokens
    print(f"a vocabulary of {tokens} tokens: {grown:.1f} bytes a token at the peak, {figures['cpu']:.1f} CPU s")


def main():
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 512])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="part of the name of a case: 'ids', 'tokens, single' ...")
    parser.add_argument("--load-tokens", type=int, default=10_000_000, help="vocabulary to load; 0 for none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.load_tokens:
            load(options.load_tokens, folder)
        vocabulary = str(Path(folder) / "tokens.txt")
        write_vocabulary(vocabulary, ROWS - 1)
        cases = [Case(tokens, multivalent) for tokens in (False, True) for multivalent in (False, True)]
        rows = [row for case in cases if options.only in str(case) for row in compare(case, options, vocabulary)]
    times = [f"{name} us" for name in SIDES]
    head = ["case", "batch", *times, "ours / upstream (range)", "ours / parsing (range)", "ours / bare (range)"]
    show(table(head, rows), None, "")


if __name__ == "__main__":
    main()
