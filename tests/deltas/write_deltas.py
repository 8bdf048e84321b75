"""Writes a version with a chain of deltas, with the code that is checked out: see `test_earlier_deltas.py`.

python -m tests.deltas.write_deltas <new folder>
"""

import os
import shutil
import sys
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np

from components.deltas.updates import publish_delta
from components.pusher.publish import publish
from embedding_core.deltas.content import Delta
from embedding_core.deltas.served_state import LoadedVersion, read_state
from tests.deltas.worlds import SECRET, World, link_of, request_of

NUMBER, DELTAS, SIGNATURES = 1790000000, 3, ("serving_default", "embeddings")
ROWS_DTYPE = {"words": "float16", "items": "int8"}


def main(folder):
    """Write the version, its deltas, the secret, and the answers before and after each delta."""
    folder = Path(folder)
    folder.mkdir()
    world = World.of(31)
    model = world.export(folder / "model", rows_dtype=ROWS_DTYPE)
    state, chain = read_state(model), []
    facts = {"identity": "one", "deltas": {"digest": state.digest(), "full_push": "no version was pushed yet."}}
    publish(model, folder / "served", check=lambda _: facts, clock=lambda: NUMBER)
    requests = []
    for number in range(1, DELTAS + 1):
        world.step(order=number == 2)
        new = world.state(state)
        counts = Delta.between(state, new).counts()
        request, state = request_of(state, new, number)
        link = link_of(request, identity=f"delta {number}", changes=counts)
        publish_delta(folder / "served", NUMBER, chain, link)
        chain.append(link)
        requests.append(request)
    rows = world.requests(20)
    expected = {f"examples/{number}": np.frombuffer(row, np.uint8) for number, row in enumerate(rows)}
    with LoadedVersion(folder / "served" / str(NUMBER)) as version:
        for number, request in enumerate([None, *requests]):
            assert request is None or version.call("apply_delta", **request)["applied"] == 1
            for name in SIGNATURES:
                answers = version.answer(name, rows)
                expected |= {
                    f"answers/{number}/{name}/{key}": value.astype(value.dtype if value.dtype != object else "S")
                    for key, value in answers.items()
                }
    np.savez_compressed(folder / "expected.npz", **expected)
    (folder / "secret").write_bytes(SECRET)
    shutil.rmtree(model)
    for path in folder.glob("model-*.txt"):
        path.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
