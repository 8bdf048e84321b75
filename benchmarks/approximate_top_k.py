"""Compares the search of inverted lists with the exact search for the best candidates of a two-tower model.

    python -m benchmarks.approximate_top_k [--candidates 1000000] [--kinds clusters purchases gaussian] [--rounds 5]

Vectors of 64 columns, from a seed, of three kinds:

- "clusters": 2,000 centers from a normal distribution, of Pareto sizes; candidates and queries are a center plus normal
  noise of half its standard deviation;
- "purchases": trained vectors. A made-up user likes four of many topics and buys 40 items, log-uniform by rank; a tenth
  of them are of random topics. Each item is bought once more, by a random user. The vectors are a truncated
  singular value decomposition of users x items (PureSVD; Cremonesi et al., 2010), by randomized subspace iteration
  (Halko et al., 2011), with items divided by the square root of their counts. Queries are users;
- "gaussian": normal noise. A search of some lists only cannot work: the best candidates are spread over all lists.

"exact" and each number of probes take turns in one process, as functions that return the best 100. Recall is the
share of the exact 20 (and 100) best candidates among the first 20 (and 100) found, over 512 queries.
"""

import argparse
import itertools

import numpy as np
import scipy.sparse
import tensorflow as tf

from benchmarks.measuring import show, spent, table, take_turns
from embedding_core.serving.candidate_search import ExactSearch, ListSearch, divide
from embedding_core.serving_config import Approximate

DIM, K, QUERIES = 64, 100, 512
CENTERS, PURCHASES, TOPICS = 2000, 40, 4


def clusters(count, generator):
    """Draw candidates and queries around centers."""
    centers = generator.normal(size=(CENTERS, DIM))
    weights = generator.pareto(1.5, size=CENTERS) + 0.2
    chosen = generator.choice(CENTERS, count + QUERIES, p=weights / weights.sum())
    vectors = (centers[chosen] + 0.5 * generator.normal(size=(count + QUERIES, DIM))).astype(np.float32)
    return vectors[:count], vectors[count:]


def gaussian(count, generator):
    """Draw candidates and queries without any structure."""
    vectors = generator.normal(size=(count + QUERIES, DIM)).astype(np.float32)
    return vectors[:count], vectors[count:]


def bought(items, users, generator):
    """Draw purchases: return the user's number and the item's number of each purchase."""
    topics = max(50, items // 2000)
    start = np.linspace(0, items, topics + 1).astype(np.int64)  # the items of a topic, most frequent first
    user = np.repeat(np.arange(users), PURCHASES)
    liked = generator.integers(topics, size=(users, TOPICS))
    topic = liked[user, np.minimum(generator.geometric(0.5, size=len(user)) - 1, TOPICS - 1)]
    anywhere = generator.random(len(user)) < 0.1
    topic[anywhere] = generator.integers(topics, size=anywhere.sum())
    size = start[topic + 1] - start[topic]
    item = start[topic] + np.minimum(size ** generator.random(len(user)) - 1, size - 1).astype(np.int64)
    return np.append(user, generator.integers(users, size=items)), np.append(item, np.arange(items))


def purchases(count, generator):
    """Train candidates and queries by a singular value decomposition of purchases."""
    users = max(10 * QUERIES, count // 10)
    user, item = bought(count, users, generator)
    matrix = scipy.sparse.csr_matrix((np.ones(len(user), np.float32), (user, item)), (users, count))
    matrix.data[:] = 1.0
    counts = np.asarray(matrix.sum(0)).ravel()
    matrix = matrix @ scipy.sparse.diags((1 / np.sqrt(np.maximum(counts, 1))).astype(np.float32))
    back = matrix.T.tocsr()
    found = matrix @ generator.normal(size=(count, DIM + 8)).astype(np.float32)
    for _ in range(2):
        found = matrix @ (back @ np.linalg.qr(found)[0])
    basis = np.linalg.qr(found)[0]
    left, values, right = _decomposed(back @ basis)
    scale = np.sqrt(values[:DIM])
    chosen = generator.choice(users, QUERIES, replace=False)
    return (left[:, :DIM] * scale).astype(np.float32), ((basis[chosen] @ right)[:, :DIM] * scale).astype(np.float32)


def _decomposed(tall):
    """Compute the singular value decomposition of a tall matrix A from the eigenvectors of A^T A."""
    values, right = np.linalg.eigh(tall.T.astype(np.float64) @ tall)
    values, right = np.sqrt(np.maximum(values[::-1], 1e-12)), right[:, ::-1]
    return tall @ (right / values), values, right


KINDS = {"clusters": clusters, "purchases": purchases, "gaussian": gaussian}


def traced(search):
    """Return the search as a function of queries `[B, n]`."""
    function = tf.function(lambda queries: search.best(queries, K), autograph=False)
    return function.get_concrete_function(tf.TensorSpec([None, DIM]))


def recall(found, wanted, k):
    """Return the mean share of the first k wanted rows that are among the first k found."""
    return np.mean([len(set(answer[:k]) & set(other[:k])) / k for answer, other in zip(found, wanted, strict=True)])


def rows_of(function, queries, batch=64):
    """Return the rows that a search finds for all queries."""
    parts = (queries[start : start + batch] for start in range(0, len(queries), batch))
    return np.concatenate([function(part)[1].numpy() for part in parts])


def timed(functions, queries, batch, rounds):
    """Return, by name, [rounds, 2]: the CPU and wall milliseconds of a call."""

    def turn(function):
        places = itertools.cycle(range(0, len(queries) - batch + 1, batch))
        return lambda: spent(lambda: function(queries[(start := next(places)) : start + batch]), max(1, 8 // batch))

    turns = {name: turn(function) for name, function in functions.items()}
    take_turns(turns, 1)  # not counted
    return {name: 1e3 * np.array(times) for name, times in take_turns(turns, rounds).items()}


def compare(kind, options):
    """Measure one kind of vectors; yield the cells of each search."""
    vectors, queries = KINDS[kind](options.candidates, np.random.default_rng(7))
    lists, made = Approximate(when="always").lists_of(len(vectors)), []
    cost = spent(lambda: made.append(divide(vectors, lists)))
    (divided,) = made
    largest = int(np.diff(divided.starts).max())
    print(f"{kind}: {len(divided.means)} lists, the largest of {largest} candidates, {cost.cpu:.0f} CPU s", flush=True)
    functions = {"exact": traced(ExactSearch(vectors))}
    for probes in options.probes:
        functions[f"{probes} probes"] = traced(ListSearch(vectors, divided, probes))
    given = tf.constant(queries)
    wanted = rows_of(functions["exact"], given)
    figures = [timed(functions, given, batch, options.rounds) for batch in options.batches]
    for name, function in functions.items():
        found = rows_of(function, given)
        cells = [kind, name, f"{recall(found, wanted, 20):.3f}", f"{recall(found, wanted, K):.3f}"]
        for times in figures:
            (cpu, wall), faster = np.median(times[name], axis=0), np.median(times["exact"] / times[name], axis=0)
            cells += [f"{wall:.2f} ({cpu:.2f} CPU)", f"{faster[1]:.1f} ({faster[0]:.1f})"]
        yield cells


def main():
    """Run the kinds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--probes", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = [row for kind in options.kinds for row in compare(kind, options)]
    columns = [column for batch in options.batches for column in (f"batch of {batch}, ms", "times faster")]
    show(table(["vectors", "search", "recall@20", f"recall@{K}", *columns], rows), None, "")


if __name__ == "__main__":
    main()
