"""Serves any state of a world as a whole export without deltas would, for the campaign of chains.

Exporting at each of thousands of links would take hours. The graph of an export depends on the sizes of the tables
alone, so one export is made for each size, and the files of the others are written into it: the variables under the
names and at the places at which that export has its own, and the vocabularies.
"""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from embedding_core.deltas.served_state import LoadedVersion
from embedding_core.rows_dtype import dtypes_of_tables
from embedding_core.serving.lookups import encoded
from tests.deltas.worlds import TABLES

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class WholeExport(LoadedVersion):
    """A whole export, loaded in a session, that can serve every world of the same sizes."""

    def __init__(self, world, folder, rows_dtype):
        super().__init__(world.export(folder, deltas=False, rows_dtype=rows_dtype))
        self._dtypes = dtypes_of_tables(rows_dtype, TABLES)
        reader = tf.train.load_checkpoint(f"{folder}/variables/variables")
        self._variables = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        self._places = dict(self._found(world))
        with self._session.graph.as_default():
            tables = [one for one in self._session.graph.get_operations() if one.type == "HashTableV2"]
            self._forget = [tf.raw_ops.DestroyResourceOp(resource=one.outputs[0]) for one in tables]
        assert len(tables) == len(world.tokens)
        self._serves = itertools.count()

    def _found(self, world):
        """Yield where the export has the rows of each table, and each of the dense weights, by their values."""
        covered = 0
        for table, rows in self._rows_of(world).items():
            ((key, start),) = [
                (key, start)
                for key, block in self._variables.items()
                if key.startswith("tables/") and block.dtype == rows.dtype and block.shape[1:] == rows.shape[1:]
                for start in range(len(block) - len(rows) + 1)
                if block[start : start + len(rows)].tobytes() == rows.tobytes()
            ]
            covered += len(rows)
            yield table, (key, start)
        blocks = [block for key, block in self._variables.items() if key.startswith("tables/")]
        assert covered == sum(len(block) - 1 for block in blocks)  # each ends with a row of zeros
        for number, value in enumerate(world.weights):
            (key,) = [
                key
                for key, one in self._variables.items()
                if key.startswith("dense_variables/") and one.shape == value.shape and one.tobytes() == value.tobytes()
            ]
            yield number, key

    def _rows_of(self, world):
        return {table: encoded(rows, self._dtypes[table]) for table, rows in world.rows.items()}

    def serve(self, world):
        """Serve what an export of that world would: restore its variables, and read its vocabularies."""
        values = dict(self._variables)
        for table, rows in self._rows_of(world).items():
            key, start = self._places[table]
            values[key] = np.concatenate([values[key][:start], rows, values[key][start + len(rows) :]])
        for number, value in enumerate(world.weights):
            values[self._places[number]] = value
        prefix = f"{self._folder}/served-{next(self._serves)}"
        names = sorted(values)
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[values[one] for one in names],
        )
        saver, init = self._meta.saver_def, self._meta.signature_def["__saved_model_init_op"].outputs
        self._session.run(saver.restore_op_name, feed_dict={saver.filename_tensor_name: prefix})
        feed = {}
        for asset in self._meta.asset_file_def:
            vocabulary = asset.filename.removesuffix(".txt").rsplit("-", 1)[1]
            feed[asset.tensor_info.name] = f"{prefix}-{vocabulary}.txt"
            with open(feed[asset.tensor_info.name], "wb") as file:
                file.writelines(token + b"\n" for token in world.tokens[vocabulary])
        self._session.run(self._forget)
        self._session.run(init["__saved_model_init_op"].name, feed_dict=feed)
        for path in tf.io.gfile.glob(f"{prefix}*"):
            tf.io.gfile.remove(path)
        return self


@dataclasses.dataclass
class WholeExports:
    """Whole exports by the sizes of their tables; `made` is their number."""

    folder: object
    loaded: dict = dataclasses.field(default_factory=dict)

    @property
    def made(self):
        return len(self.loaded)

    def of(self, world, rows_dtype):
        """Return a whole export that serves that world now."""
        key = (str(rows_dtype), *(len(rows) for rows in world.rows.values()))
        if key not in self.loaded:
            self.loaded[key] = WholeExport(world, self.folder / str(self.made), rows_dtype)
            return self.loaded[key]
        return self.loaded[key].serve(world)

    def close(self):
        for version in self.loaded.values():
            version.close()
