"""Provides a slow oracle in numpy for lookups and optimizers, and builders of inputs, for tests of models.

The oracle is written with loops over single ids, in float64, from the documented rules alone, and
shares no code with the engines that it judges.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Samples:
    """The ids of one feature in one batch, one list per example; and a weight per id, or None for ones."""

    ids: list
    weights: list | None = None

    def pairs(self, example):
        """Return the (id, weight) pairs of one example."""
        ids = self.ids[example]
        weights = [1.0] * len(ids) if self.weights is None else self.weights[example]
        return list(zip(ids, weights, strict=True))


def build_dense(samples):
    """Build dense [B, 1] ids of samples with one id each."""
    return tf.constant(np.array(samples.ids, np.int64).reshape(len(samples.ids), 1))


def build_ragged(samples):
    """Build ragged [B, None] ids, and their weights if given."""
    splits = np.cumsum([0, *(len(ids) for ids in samples.ids)])
    flat = np.array([i for ids in samples.ids for i in ids], np.int64)
    ids = tf.RaggedTensor.from_row_splits(flat, splits)
    if samples.weights is None:
        return ids, None
    weights = np.array([w for row in samples.weights for w in row], np.float32)
    return ids, tf.RaggedTensor.from_row_splits(weights, splits)


def build_sparse(samples, order=None):
    """Build sparse [B, longest] ids, and their weights if given; in random order if a generator is given."""
    places = [(row, column) for row, ids in enumerate(samples.ids) for column in range(len(ids))]
    turn = np.arange(len(places)) if order is None else order.permutation(len(places))
    shape = [len(samples.ids), max([1, *(len(ids) for ids in samples.ids)])]
    indices = np.array(places, np.int64).reshape(-1, 2)[turn]

    def build(lists, dtype):
        flat = np.array([value for values in lists for value in values], dtype)
        return tf.SparseTensor(indices, flat[turn], shape)

    return build(samples.ids, np.int64), None if samples.weights is None else build(samples.weights, np.float32)


def oracle_lookup(table, samples, combiner, max_sequence_length=0):
    """Return the activations of one feature, float64 [B, dim], or [B, max_sequence_length, dim] of a sequence.

    A sequence has the first `max_sequence_length` rows of each example, and is padded with zeros.
    """
    table = np.asarray(table, np.float64)
    places = max_sequence_length or 1
    out = np.zeros([len(samples.ids), places, table.shape[1]])
    for example in range(len(samples.ids)):
        for place, (identity, gain) in _gains(samples, example, combiner, max_sequence_length):
            out[example, place] += gain * table[identity]
    return out if max_sequence_length else out[:, 0]


def _gains(samples, example, combiner, max_sequence_length):
    """Return (place, (id, factor of its row)) for each id of one example."""
    pairs = samples.pairs(example)
    if max_sequence_length:
        return [(place, (identity, 1.0)) for place, (identity, _) in enumerate(pairs[:max_sequence_length])]
    total = {
        "sum": 1.0,
        "mean": sum(weight for _, weight in pairs),
        "sqrtn": math.sqrt(sum(weight**2 for _, weight in pairs)),
    }[combiner]
    return [(0, (identity, weight / total if total else 0.0)) for identity, weight in pairs]


def oracle_occurrences(samples, combiner, gradient, max_sequence_length=0):
    """Return the (id, gradient of its row) pairs of one feature, in the order of the batch.

    `gradient` is that of the activations, in their shape.
    """
    gradient = np.asarray(gradient, np.float64).reshape(len(samples.ids), max_sequence_length or 1, -1)
    return [
        (identity, gain * gradient[example, place])
        for example in range(len(samples.ids))
        for place, (identity, gain) in _gains(samples, example, combiner, max_sequence_length)
    ]


def oracle_update(optimizer, table, slots, occurrences, rate):
    """Take one optimizer step on float64 arrays, in place.

    The gradients of a row are summed, and the row is updated once; without gradient accumulation each occurrence
    is a separate update. Non-lazy Adam also updates all remaining rows, with a zero gradient.
    """
    if not optimizer.use_gradient_accumulation:
        for identity, gradient in occurrences:
            _update_row(optimizer, table, slots, identity, gradient, rate)
        return
    totals = {}
    if not getattr(optimizer, "lazy_adam", True):
        totals = {row: np.zeros(table.shape[1]) for row in range(len(table))}
    for identity, gradient in occurrences:
        totals[identity] = totals.get(identity, 0.0) + gradient
    for identity, gradient in totals.items():
        _update_row(optimizer, table, slots, identity, gradient, rate)


def _update_row(optimizer, table, slots, identity, gradient, rate):
    low, high = optimizer.gradient_bounds
    gradient = np.clip(gradient, -np.inf if low is None else low, np.inf if high is None else high)
    row = table[identity].copy()
    if optimizer.weight_decay_factor is not None:
        decay = optimizer.weight_decay_factor
        decay *= rate if optimizer.multiply_weight_decay_factor_by_learning_rate else 1.0
        row = row * (1.0 - decay)
    rule = _RULES[type(optimizer).__name__]
    row, *values = rule(optimizer, row, [slot[identity] for slot in slots], gradient, rate)
    low, high = optimizer.clip_weight_min, optimizer.clip_weight_max
    table[identity] = np.clip(row, -np.inf if low is None else low, np.inf if high is None else high)
    for slot, value in zip(slots, values, strict=True):
        slot[identity] = value


def _sgd(_, w, slots, g, lr):
    return (w - lr * g,)


def _adagrad(_, w, slots, g, lr):
    a = slots[0] + g * g
    return w - lr * g / np.sqrt(a), a


def _adagrad_momentum(o, w, slots, g, lr):
    a, m = slots
    a = a + g * g if o.beta2 == 1 else o.beta2 * a + (1 - o.beta2) * g * g
    s = g / (a + o.epsilon) ** (1 / o.exponent)
    m = o.momentum * m + s
    return w - lr * (o.momentum * m + s if o.use_nesterov else m), a, m


def _adam(o, w, slots, g, lr):
    m = o.beta_1 * slots[0] + (1 - o.beta_1) * g
    v = o.beta_2 * slots[1] + (1 - o.beta_2) * g * g
    root = np.sqrt(v + o.epsilon * o.epsilon) if o.sum_inside_sqrt else np.sqrt(v) + o.epsilon
    return w - lr * m / root, m, v


def _ftrl(o, w, slots, g, lr):
    a, z = slots
    new = a + g * g
    growth = new**-o.learning_rate_power - a**-o.learning_rate_power
    l1, l2 = o.l1_regularization_strength, o.l2_regularization_strength
    if o.multiply_linear_by_learning_rate:
        z = z + lr * g - growth * w
        w = (np.clip(z, -lr * l1, lr * l1) - z) / (new**-o.learning_rate_power + 2 * lr * l2 + o.beta)
    else:
        z = z + g - growth / lr * w
        w = (np.clip(z, -l1, l1) - z) / ((new**-o.learning_rate_power + o.beta) / lr + 2 * l2)
    return w, new, z


_RULES = {
    "SGD": _sgd,
    "Adagrad": _adagrad,
    "AdagradMomentum": _adagrad_momentum,
    "Adam": _adam,
    "FTRL": _ftrl,
}


class Oracle:
    """Holds the tables and slots of a model in float64, looks up their rows and updates them, batch by batch.

    Attributes:
      tables: [rows, dim] by table name.
      slots: the slots of each table, in the order of its optimizer.
    """

    def __init__(self, config, tables, optimizer=None):
        """Start from given rows; `optimizer` is that of the tables that have none of their own."""
        self._config = config
        self._optimizers = {table.name: table.optimizer or optimizer for table in config.tables}
        self.tables = {name: np.array(rows, np.float64) for name, rows in tables.items()}
        self.slots = {
            name: [np.full(self.tables[name].shape, slot.initial) for slot in (own.slots if own else ())]
            for name, own in self._optimizers.items()
        }

    def lookup(self, batch):
        """Return the activations of every feature of the batch."""
        return {name: self._lookup(name, samples) for name, samples in batch.items()}

    def _lookup(self, name, samples):
        table = self._config.table_of(name)
        length = self._config.feature(name).max_sequence_length
        return oracle_lookup(self.tables[table.name], samples, table.combiner, length)

    def apply_gradients_of_cores(self, cores):
        """Take one step of several cores, each with a batch and the gradients of its activations by feature."""
        occurrences = {}
        for batch, gradients in cores:
            for feature in self._config.features:
                table = self._config.table_of(feature.name)
                length = feature.max_sequence_length
                found = oracle_occurrences(batch[feature.name], table.combiner, gradients[feature.name], length)
                occurrences.setdefault(table.name, []).extend(found)
        for name, found in occurrences.items():
            rate = self._optimizers[name].learning_rate
            value = float(rate() if callable(rate) else rate)
            oracle_update(self._optimizers[name], self.tables[name], self.slots[name], found, value)
