"""Kills a process that writes deltas, at every call that changes files, and reads the chain as a client does.

``python -m tests.deltas.killing <trials> <seed> <folder>`` with `tests/faults/interpose.c` preloaded prints one line of
JSON. Each trial forks a process that is killed while it writes the next delta, and one that is not.
"""

import hashlib
import json
import os
import random
import signal
import sys

from components.pusher.delta_chain import Link, folder_of, publish_delta, read_chain
from components.pusher.publish import publish
from tests.faults.pushing import COUNT, KILL, Interposed, forked

FIRST = "0" * 64


def link_of(number):
    """Return delta `number` of a chain of made-up content, which depends on the number alone."""
    digests = [FIRST, *(hashlib.sha256(b"%d" % one).hexdigest() for one in range(1, number + 1))]
    content = random.Random(number).randbytes(50_000)
    return Link(number=number, base=digests[-2], digest=digests[-1], checksum="1", content=content)


def write_next(base, version):
    chain = read_chain(base, version, FIRST)
    publish_delta(base, version, chain, link_of(len(chain) + 1))


def is_whole(base, version):
    """Return the number of deltas, after a check of the content of each."""
    chain = read_chain(base, version, FIRST)
    assert [(one.number, one.content, one.base) for one in chain] == [
        (one.number, one.content, one.base) for one in map(link_of, range(1, len(chain) + 1))
    ]
    return len(chain)


def main(trials, seed, folder):
    """Run the campaign and print its figures."""
    model, base, report = (os.path.join(folder, name) for name in ("model", "base", "calls.json"))
    os.makedirs(model)
    with open(os.path.join(model, "saved_model.pb"), "wb") as file:
        file.write(b"a model")
    version = publish(model, base, check=lambda copy: {}).version
    interposed = Interposed()

    def count():
        write_next(base, version)
        interposed.arm(COUNT)
        write_next(base, version)
        calls = interposed.calls()
        with open(report, "w") as file:
            json.dump(calls, file)

    def die_at(point):
        interposed.arm(KILL, point)
        write_next(base, version)

    assert forked(count) == 0
    with open(report) as file:
        calls = [line.split()[0] for line in json.load(file)]
    points = list(range(1, len(calls) + 1))
    if int(trials) < len(points):
        points = sorted(random.Random(int(seed)).sample(points, int(trials)))
    figures = {"killed": 0, "half": 0, "lost": 0, "leftovers": 0, "failed": 0, "visible": 0}
    for point in points:
        before = is_whole(base, version)
        figures["killed"] += forked(lambda point=point: die_at(point)) == -signal.SIGKILL
        after = is_whole(base, version)
        figures["half"] += after not in {before, before + 1}
        figures["visible"] += after == before + 1
        figures["failed"] += forked(lambda: write_next(base, version)) != 0
        figures["lost"] += is_whole(base, version) != after + 1
        figures["leftovers"] += sum(name.startswith(".") for name in os.listdir(folder_of(base, version)))
    figures |= {"trials": len(points), "calls": len(calls), "kinds": sorted(set(calls)), "seed": int(seed)}
    sys.stdout.write(json.dumps({"campaign": "deltas killed while written", **figures}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
