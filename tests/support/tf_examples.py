"""Makes serialized tf.Examples, and files of them."""

import numbers

import tensorflow as tf


def example(row):
    """Serialize a row: bytes, ints or floats by column, one value or a list; an empty list or None is no value."""
    made = tf.train.Example()
    for name, given in row.items():
        values = [] if given is None else given if isinstance(given, list) else [given]
        feature = made.features.feature[name]
        if values:
            kinds = {bytes: feature.bytes_list, numbers.Integral: feature.int64_list, numbers.Real: feature.float_list}
            next(kind for type_, kind in kinds.items() if isinstance(values[0], type_)).value.extend(values)
    return made.SerializeToString(deterministic=True)


def write_rows(path, rows, compression=""):
    """Write rows, or serialized ones, to a file of records; return its path as a string."""
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for row in rows:
            writer.write(row if isinstance(row, bytes) else example(row))
    return str(path)
