"""Kills a process that pushes, at calls that change files, while a watcher polls.

``python -m tests.faults.pushing <trials> <seed> <folder>`` with `interpose.c` preloaded prints one line of JSON. Each
trial forks processes that publish files of random bytes and record them as a PushedModel in ML Metadata: one is killed,
the next one is not.
"""

import json
import os
import random
import signal
import sys
import time

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2

from components.pusher.publish import publish
from components.pusher.served import served_versions, verify_version
from embedding_core.errors import CheckpointError
from tests.support.interposed import KILL, arm, counted, forked, points_of

KEPT = 3
SIZES = {"saved_model.pb": 40_000, "variables/variables.data-00000-of-00001": 120_000, "variables/variables.index": 300}
SIZES |= {"assets/words.txt": 20_000, "fingerprint.pb": 60}


class Records:
    """PushedModel artifacts in an SQLite store."""

    def __init__(self, path):
        config = metadata_store_pb2.ConnectionConfig()
        config.sqlite.filename_uri = path
        self.store = metadata_store.MetadataStore(config)

    def add(self, published):
        kind = metadata_store_pb2.ArtifactType(name="PushedModel")
        artifact = metadata_store_pb2.Artifact(type_id=self.store.put_artifact_type(kind), uri=published.path)
        for key, value in (("digest", published.digest), ("version", str(published.version))):
            artifact.custom_properties[key].string_value = value
        self.store.put_artifacts([artifact])

    def wrong(self, base, kept):
        """Return the paths of wrong records, and the number of records.

        A record is wrong if its version has another digest, or is missing although an older version is there:
        `keep_last` removes the oldest versions only. Digests are checked for the newest `kept` versions.
        """
        there = served_versions(base)
        found = [
            (artifact.uri, artifact.custom_properties) for artifact in self.store.get_artifacts_by_type("PushedModel")
        ]
        recent = [(uri, said) for uri, said in found if int(said["version"].string_value) in there[-kept:]]
        bad = [uri for uri, said in recent if verify_version(uri)["digest"] != said["digest"].string_value]
        removed = [uri for uri, said in found if int(said["version"].string_value) not in there]
        return bad + [uri for uri in removed if there and int(os.path.basename(uri)) > there[0]], len(found)


def make_model(folder, seed):
    """Write random bytes to files named as those of a SavedModel."""
    random_ = random.Random(seed)
    for name, size in SIZES.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(random_.randbytes(size))


def watch(base, report):
    """Poll as TensorFlow Serving does: every child with a numeric name is a version. Verify each when it appears."""
    seen, incomplete, polls, stop, last = set(), [], 0, [], False
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    with open(f"{report}.ready", "w"):
        pass
    while not last:
        last = bool(stop)
        polls += 1
        time.sleep(0.0005)
        for name in os.listdir(base):
            if name.isdigit() and name not in seen:
                seen.add(name)
                try:
                    verify_version(os.path.join(base, name))
                except CheckpointError as error:
                    if os.path.exists(os.path.join(base, name)):  # else `keep_last` removed it meanwhile
                        incomplete.append(str(error))
    with open(report, "w") as file:
        json.dump({"polls": polls, "seen": len(seen), "incomplete": incomplete}, file)


class Campaign:
    """One base folder, its watcher and its records."""

    def __init__(self, folder, seed):
        self.model, self.base = os.path.join(folder, "model"), os.path.join(folder, "base")
        self.database, self.report = os.path.join(folder, "records.db"), os.path.join(folder, "watched.json")
        make_model(self.model, seed)
        self.sizes = sizes_below(self.model)
        os.makedirs(self.base)
        self.figures = {"killed": 0, "leftovers": 0, "failed_pushes": 0, "died_with_leftovers": 0}

    def push(self, *_):
        """Publish a version, then record it, as the executor and then the launcher do."""
        self.records = Records(self.database)
        self.records.add(publish(self.model, self.base, check=self.verify, keep_last=KEPT))

    def verify(self, path):
        """Check, as a caller of `publish` does, that the hidden copy has every file in full."""
        assert sizes_below(path) == self.sizes
        return {}

    def hidden(self):
        return [name for name in os.listdir(self.base) if name.startswith(".version.tmp-")]

    def trial(self, point):
        """Run a push that is killed at a call, then one that is not."""

        def die(_):
            arm(KILL, point)
            self.push()

        self.figures["killed"] += forked(die)[0] == -signal.SIGKILL
        self.figures["died_with_leftovers"] += bool(self.hidden())
        self.figures["failed_pushes"] += forked(self.push)[0] != 0
        self.figures["leftovers"] += len(self.hidden())

    def watched(self, points):
        """Run the trials while a watcher compares files with their manifest; return the figures."""
        watcher = os.fork()
        if watcher == 0:
            watch(self.base, self.report)
            os._exit(0)
        while not os.path.exists(f"{self.report}.ready"):
            time.sleep(0.01)
        for point in points:
            self.trial(point)
        os.kill(watcher, signal.SIGTERM)
        os.waitpid(watcher, 0)
        with open(self.report) as file:
            self.figures |= json.load(file)
        wrong, records = Records(self.database).wrong(self.base, KEPT)
        return {**self.figures, "records": records, "wrong_records": wrong}


def sizes_below(folder):
    """Return the size of every file below a folder, by relative path."""
    found = {}
    for root, _, names in os.walk(folder):
        for path in (os.path.join(root, name) for name in names):
            found[os.path.relpath(path, folder)] = os.path.getsize(path)
    return found


def main(trials, seed, folder):
    """Kill a push at each of its calls, or at a sample of them, and print the figures."""
    campaign = Campaign(folder, int(seed))
    assert forked(campaign.push)[0] == 0
    kinds = counted(campaign.push)
    points = points_of(kinds, int(trials), int(seed))
    figures = {"calls": len(kinds), "kinds": sorted(set(kinds)), "trials": len(points), **campaign.watched(points)}
    sys.stdout.write(json.dumps({"campaign": "pushes killed", "seed": int(seed), **figures}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
