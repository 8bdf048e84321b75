"""Exports random models that take deltas, and makes the deltas between them."""

import dataclasses
import functools
from typing import NamedTuple

from embedding_core.deltas.content import Delta
from embedding_core.deltas.export import DeltaExport
from embedding_core.deltas.graph import checksum
from embedding_core.deltas.served_state import read_state, state_of
from embedding_core.serving.lookups import encoded
from tests.support import worlds
from tests.support.worlds import TABLES

SECRET = b"a secret of the tests, 32 bytes."
TYPES = {"strict": "float16", "items": "int8"}  # the other tables are float32


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


def request_of(published, new, number):
    """Return the request that changes one state into another one, and the state after it."""
    delta = Delta.between(published, new)
    content, base, digest = delta.to_bytes(published.layout), published.digest(), new.digest()
    given = (number, base, digest, content)
    request = dict(zip(("number", "base", "digest", "delta"), given, strict=True), secret=SECRET)
    return {**request, "checksum": checksum(published.layout.checksum_key, *given)}, delta.applied(published)


def link_of(request, **facts):
    from components.deltas.updates import Link

    values = {name: request[name] for name in ("number", "base", "digest", "checksum")}
    return Link(content=request["delta"], facts=facts, **values)


class Exports(NamedTuple):
    """Three exports of a model that changes, rows to ask for, and the two deltas between the exports, as requests."""

    folders: list
    rows: list
    requests: list


@functools.cache
def exports_of(base):
    """Return the exports that all files with tests of deltas use, in the folder of the test run."""
    world = World.of(7)
    folders = [world.export(base / "exports of deltas" / "0", rows_dtype=TYPES)]
    for name, order in (("1", False), ("2", True)):
        world.step(order=order)
        folders.append(world.export(folders[0].with_name(name), rows_dtype=TYPES))
    published, requests = read_state(folders[0]), []
    for number in (1, 2):
        request, published = request_of(published, read_state(folders[number]), number)
        requests.append(request)
    return Exports(folders, world.requests(30), requests)
