"""Kills a process that writes or copies deltas, at every call that changes files, and reads them as a client does.

``python -m tests.deltas.killing <campaign> <trials> <seed> <folder>`` with `tests/support/interpose.c` preloaded prints
one line of JSON. Each trial forks a process that is killed while it writes the next delta (campaign "deltas"), or while
it goes back to a version that has deltas ("rollback"), and one that is not.
"""

import hashlib
import json
import os
import random
import signal
import sys

from components.deltas.updates import Link, folder_of, publish_delta, read_chain
from components.pusher.publish import publish, roll_back
from components.pusher.served import damage_of, served_versions, verify_version
from tests.support.interposed import KILL, arm, counted, forked, points_of

FIRST = "0" * 64


def link_of(number):
    """Return delta `number` of a chain of made-up content, which depends on the number alone."""
    digests = [FIRST, *(hashlib.sha256(b"%d" % count).hexdigest() for count in range(1, number + 1))]
    content = random.Random(number).randbytes(50_000)
    return Link(number=number, base=digests[-2], digest=digests[-1], checksum="1", content=content)


def is_whole(base, version):
    """Return the number of deltas, after a check of the content of each; one that is removed would be missed."""
    assert damage_of(str(base), version) is None
    chain = read_chain(base, version, FIRST)
    assert [(link.number, link.content, link.base) for link in chain] == [
        (link.number, link.content, link.base) for link in map(link_of, range(1, len(chain) + 1))
    ]
    if chain:
        newest = os.path.join(folder_of(base, version), str(len(chain)))
        os.rename(newest, newest + ".away")
        assert "is missing" in damage_of(str(base), version)
        os.rename(newest + ".away", newest)
    return len(chain)


class Writing:
    """Writes the next delta of one version; `seen` counts its deltas."""

    def __init__(self, base, version):
        self.base, self.version = base, version

    def ready(self):
        """Read the chain: its files grow in number, so reading them must not shift the calls that are counted."""
        return read_chain(self.base, self.version, FIRST)

    def act(self, chain=None):
        chain = self.ready() if chain is None else chain
        publish_delta(self.base, self.version, chain, link_of(len(chain) + 1))

    def seen(self):
        return is_whole(self.base, self.version)

    def leftovers(self):
        return sum(name.startswith(".") for name in os.listdir(folder_of(self.base, self.version)))


class GoingBack(Writing):
    """Goes back to a version with deltas; `seen` counts versions, of which the newest must have them all."""

    DELTAS = 3

    def __init__(self, base, version):
        super().__init__(base, version)
        for _ in range(self.DELTAS):
            super().act(super().ready())
        publish(os.path.join(os.path.dirname(base), "model"), base, check=lambda copy: {})

    def ready(self):
        return None

    def act(self, chain=None):
        roll_back(self.base, to=self.version)

    def seen(self):
        versions = served_versions(self.base)
        verify_version(os.path.join(self.base, str(versions[-1])))
        assert len(versions) == 2 or is_whole(self.base, versions[-1]) == self.DELTAS, "a copy without its deltas"
        return len(versions)

    def leftovers(self):
        """Count hidden folders, and deltas of no version."""
        versions = {str(number) for number in served_versions(self.base)}
        deltas = os.listdir(os.path.join(self.base, "deltas"))
        deltas += [name.split("-")[1] for name in os.listdir(self.base) if name.startswith(".deltas-")]
        return sum(".tmp-" in name for name in os.listdir(self.base)) + sum(name not in versions for name in deltas)


def main(campaign, trials, seed, folder):
    """Run the campaign and print its figures."""
    model, base = os.path.join(folder, "model"), os.path.join(folder, "base")
    os.makedirs(model)
    with open(os.path.join(model, "saved_model.pb"), "wb") as file:
        file.write(b"a model")
    version = publish(model, base, check=lambda copy: {"deltas": {"digest": FIRST}}).version
    work = {"deltas": Writing, "rollback": GoingBack}[campaign](base, version)
    work.act()
    kinds = counted(work.act, work.ready)
    points = points_of(kinds, int(trials), int(seed))
    figures = {"killed": 0, "half": 0, "lost": 0, "leftovers": 0, "failed": 0, "visible": 0}
    for point in points:
        before = work.seen()

        def die(_, point=point):
            chain = work.ready()
            arm(KILL, point)
            work.act(chain)

        figures["killed"] += forked(die)[0] == -signal.SIGKILL
        after = work.seen()
        figures["half"] += after not in {before, before + 1}
        figures["visible"] += after == before + 1
        figures["failed"] += forked(lambda _: work.act())[0] != 0
        figures["lost"] += work.seen() != after + 1
        figures["leftovers"] += work.leftovers()
    figures |= {"trials": len(points), "calls": len(kinds), "kinds": sorted(set(kinds))}
    sys.stdout.write(json.dumps({"campaign": f"{campaign} killed", **figures}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
