"""Kills a process that pushes, at every call that changes files or at random moments, while a watcher polls.

``python -m tests.faults.pushing <campaign> <trials> <seed> <folder> [<model>]`` with `interpose.c` preloaded prints one
line of JSON. Each trial forks processes that publish a model and record it as a PushedModel in ML Metadata: one is
killed, the next one is not. Without `<model>`, files of random bytes are pushed; with it, a second watcher loads the
versions and compares their answers (`loading.py`).
"""

import ctypes
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

KILL, COUNT = 2, 1
KEPT, KEPT_TO_BE_LOADED = 3, 30
SIZES = {"saved_model.pb": 40_000, "variables/variables.data-00000-of-00001": 120_000, "variables/variables.index": 300}
SIZES |= {"assets/words.txt": 20_000, "fingerprint.pb": 60}


class Interposed:
    """Calls the preloaded library, `interpose.c`."""

    def __init__(self):
        self.library = ctypes.CDLL(None)
        self.library.interpose_disarm.restype = ctypes.c_char_p

    def arm(self, mode, call=0):
        self.library.interpose_arm(mode, call)

    def calls(self):
        return self.library.interpose_disarm().decode().splitlines()


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
        found = [(one.uri, one.custom_properties) for one in self.store.get_artifacts_by_type("PushedModel")]
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


def forked(task):
    """Run the task in a fork; return its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            task()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


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

    def __init__(self, folder, seed, model=None):
        self.model, self.base = model or os.path.join(folder, "model"), os.path.join(folder, "base")
        self.database, self.report = os.path.join(folder, "records.db"), os.path.join(folder, "watched.json")
        self.answers = os.path.join(folder, "answers.json") if model else None
        self.kept = KEPT_TO_BE_LOADED if model else KEPT
        if model is None:
            make_model(self.model, seed)
        self.sizes = sizes_below(self.model)
        os.makedirs(self.base)
        self.interposed = Interposed()
        self.figures = {"killed": 0, "leftovers": 0, "failed_pushes": 0, "died_with_leftovers": 0}

    def push(self):
        """Publish a version, then record it, as the executor and then the launcher do."""
        self.records = Records(self.database)
        self.records.add(publish(self.model, self.base, check=self.verify, keep_last=self.kept))

    def verify(self, path):
        """Check, as a caller of `publish` does, that the hidden copy has every file in full."""
        assert sizes_below(path) == self.sizes
        return {}

    def hidden(self):
        return [name for name in os.listdir(self.base) if name.startswith(".version.tmp-")]

    def trial(self, task):
        """Run a push that is killed, then one that is not."""
        self.figures["killed"] += forked(task) == -signal.SIGKILL
        self.figures["died_with_leftovers"] += bool(self.hidden())
        self.figures["failed_pushes"] += forked(self.push) != 0
        self.figures["leftovers"] += len(self.hidden())

    def watchers(self):
        """Start a watcher that compares files with their manifest and, for a SavedModel, one that loads versions."""
        reading = os.fork()
        if reading == 0:
            watch(self.base, self.report)
            os._exit(0)
        self.wait_for(reading, self.report)
        return [reading] if self.answers is None else [reading, self.loading()]

    def loading(self):
        command = [sys.executable, "-m", "tests.faults.loading", self.base, self.answers, self.model]
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        watcher = os.posix_spawn(sys.executable, command, environment)
        self.wait_for(watcher, self.answers)
        return watcher

    def wait_for(self, watcher, report):
        while not os.path.exists(f"{report}.ready"):
            assert os.waitpid(watcher, os.WNOHANG) == (0, 0), "the watcher died"
            time.sleep(0.05)

    def watched(self, trials):
        """Run the trials while the watchers poll."""
        watchers = self.watchers()
        for task in trials:
            self.trial(task)
        for watcher in watchers:
            os.kill(watcher, signal.SIGTERM)
            os.waitpid(watcher, 0)
        watched = {}
        for report in filter(None, (self.report, self.answers)):
            with open(report) as file:
                watched |= json.load(file)
        wrong, records = Records(self.database).wrong(self.base, self.kept)
        return {**self.figures, **watched, "records": records, "wrong_records": wrong}


def sizes_below(folder):
    """Return the size of every file below a folder, by relative path."""
    found = {}
    for root, _, names in os.walk(folder):
        for path in (os.path.join(root, name) for name in names):
            found[os.path.relpath(path, folder)] = os.path.getsize(path)
    return found


def kill_at_every_call(campaign, trials, seed):
    """Kill a push at its call 1, 2, 3, ...; if there are fewer trials than calls, at a random sample of them."""

    def count():
        campaign.push()
        campaign.interposed.arm(COUNT)
        campaign.push()
        with open(campaign.report, "w") as file:
            json.dump(campaign.interposed.calls(), file)

    assert forked(count) == 0
    with open(campaign.report) as file:
        calls = [line.split()[0] for line in json.load(file)]
    points = list(range(1, len(calls) + 1))
    if trials < len(points):
        points = sorted(random.Random(seed).sample(points, trials))

    def die_at(point):
        campaign.interposed.arm(KILL, point)
        campaign.push()

    found = campaign.watched([lambda point=point: die_at(point) for point in points])
    return {**found, "calls": len(calls), "kinds": sorted(set(calls)), "trials": len(points)}


def kill_at_random(campaign, trials, seed):
    """Kill, at random moments, a process that pushes all the time; if no kill hits a push, go on to 200 trials."""
    random_ = random.Random(seed)

    def push_until_killed(delay):
        parent = os.getpid()
        if os.fork() == 0:
            time.sleep(delay)
            os.kill(parent, signal.SIGKILL)
            os._exit(0)
        while True:
            campaign.push()

    delays = []

    def tasks():
        while len(delays) < trials or (not campaign.figures["died_with_leftovers"] and len(delays) < 200):
            delays.append(random_.uniform(0.0, 0.2))
            yield lambda delay=delays[-1]: push_until_killed(delay)

    return {**campaign.watched(tasks()), "trials": len(delays)}


def main(name, trials, seed, folder, model=None):
    """Run a campaign and print its figures."""
    run = {"calls": kill_at_every_call, "random": kill_at_random}[name]
    found = run(Campaign(folder, int(seed), model), int(trials), int(seed))
    kind = "stand-in" if model is None else "SavedModel"
    sys.stdout.write(json.dumps({"campaign": f"push of a {kind}, {name}", "seed": int(seed), **found}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
