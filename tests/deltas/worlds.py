"""Exports random models that take deltas; the campaigns use it."""

import dataclasses

from embedding_core.deltas.export import DeltaExport
from embedding_core.deltas.served_state import state_of
from embedding_core.serving.lookups import encoded
from tests import worlds
from tests.worlds import TABLES

SECRET = b"a secret of the tests, 32 bytes."


class World(worlds.World):
    def state(self, published):
        """Return the state that an export of the model would have, in the types of `published`."""
        tables, blocks = [], {}
        for table in published.layout.tables:
            oov = TABLES[table.name][1]
            tokens = None if oov is None else len(self.tokens[table.name])
            capacity = len(self.rows[table.name])
            blocks[table.name] = encoded(self.rows[table.name], published.tables[table.name].rows.dtype.name)
            tables.append(dataclasses.replace(table, block=table.name, start=0, tokens=tokens, capacity=capacity))
        layout = dataclasses.replace(published.layout, tables=tuple(tables), digest="")
        return state_of(layout, blocks, self.tokens, self.weights)

    def export(self, folder, deltas=True, rows_dtype="float32", **settings):
        """Export the model to a new folder, and return the folder."""
        return super().export(folder, DeltaExport(**{"secret": SECRET, **settings}) if deltas else None, rows_dtype)
