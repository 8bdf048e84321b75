"""Runs the lines of the pages as a reader would: in a folder of the reader's own, with data of their own."""

import csv
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import typing
from pathlib import Path

from code_blocks import block_with, blocks_of, commands_of

CONFIG = """
data: {path: "clicks/{YYYY}-{MM}-{DD}.csv"}
label: clicked
features: {dense: [price], categorical: [user, item, country]}
training: {epochs: 2}
evaluation: {thresholds: {}}
"""
COLUMNS = ("user", "item", "country", "price", "clicked")
ITEMS = ["85123A", *(f"i{number}" for number in range(30))]

# What stands for something of the reader's in a line, and what it is here. Links of these names are made where they
# name a folder.
EXAMPLES = {
    "[TABLE=]TYPE": "item=float16",
    "NAME": "item",
    "CONFIG": "my_config.yaml",
    "2011-10-05.csv": "2026-01-13.csv",
    "gs://bucket/root": "runs/my_config/artifacts",
}
# Options that a line needs here: addresses that a compiled pipeline must have.
ADDED = {
    "compile": [
        "--set", "data.path=gs://bucket/{YYYY}-{MM}-{DD}.csv", "--set", "push.destination=gs://bucket/serving",
        "--set", "kubeflow={image: none, pipeline_root: gs://bucket/root}",
    ],
}  # fmt: skip
# Exit code 4 says that something was found, which depends on the data and, for latencies, on the machine.
CODES = {"preflight": (0, 4), "shadow": (0, 4), "serve": (130,)}


def write_day(folder, day, rows=1500):
    """Write a day's clicks as CSV; whether a user clicks depends on the user and the item."""
    draw = random.Random(day)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{day}.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        for _ in range(rows):
            user, item = draw.randrange(40), draw.randrange(len(ITEMS))
            clicked = int(draw.random() < 0.1 + 0.4 * (user % 2) + 0.4 * (item % 2))
            out.writerow([f"u{user}", ITEMS[item], ["NO", "SE", "DK"][user % 3], round(draw.uniform(1, 9), 2), clicked])


def forms_of(line):
    """Return a command without what stands in square brackets, and with all of it; once if it has none."""
    line = re.split(r"\s{3,}", line.replace(" [--server ...]", ""))[0].replace("]...", "]")
    for example, real in EXAMPLES.items():
        line = re.sub(rf"(?<![\w-]){re.escape(example)}(?![\w-])", real, line)
    optional = re.compile(r" \[(--[^\]]*)\]")
    return list(dict.fromkeys([optional.sub("", line), optional.sub(r" \1", line)]))


class Reader:
    """A reader of the pages.

    Attributes:
      folder: the current folder of all lines.
      ran: the lines that ran, and the texts of the blocks of Python.
      everything: what any reader of the process ran.
      variables: environment variables of the reader's shell.
    """

    everything: typing.ClassVar = set()

    def __init__(self, folder, config=CONFIG):
        self.folder, self.ran, self.variables = folder, [], {}
        self.python = Path(os.environ.get("RELEASE_PYTHON", sys.executable))
        (folder / "my_config.yaml").write_text(config)

    @property
    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TF_"))}
        return {**kept, **self.variables}

    def call(self, *command, codes=(0,)):
        """Run a program that is installed beside Python; return what it printed."""
        words = [str(self.python.with_name(command[0])), *map(str, command[1:])]
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=1200
        )
        assert done.returncode in codes, (done.args, done.returncode, done.stdout[-2500:], done.stderr[-2500:])
        return done.stdout

    def look(self, program, *words, codes):
        """Run a program that ends by Ctrl-C, which it gets as soon as it has printed two lines; return these."""
        command, show = [str(self.python.with_name(program)), *words], subprocess.PIPE
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=show, stderr=show, text=True
        ) as process:
            printed = process.stdout.readline() + process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert (process.returncode in codes, errors) == (True, ""), (printed, process.returncode, errors[-2500:])
        return printed

    def follow_page(self, page, skip=()):
        """Run the commands of a page in its order, each in its forms, except those that contain a text of `skip`."""
        for line in commands_of_page(page):
            if not any(text in line for text in skip):
                self.run(line)

    def run(self, line):
        """Run a line of a page; return what its last form printed."""
        for number, form in enumerate(forms_of(line)):
            words = shlex.split(re.sub(r"\bOUT\b", f"OUT{number}", self.with_numbers(form)))  # a new folder for each
            run = self.look if words[0] == "serve" else self.call
            printed = run("tfx-embeddings", *words, *ADDED.get(words[0], []), codes=CODES.get(words[0], (0,)))
        self.note(line)
        return printed

    def note(self, what):
        """Record that a line of a page, or the block of Python with a text, ran."""
        self.ran.append(what)
        self.everything.add(what)

    def with_numbers(self, line):
        """Replace numbers of versions and checkpoints by those that there are, the first by the first."""
        versions, named = self.versions(), sorted(set(re.findall(r"\b1790\d{6}\b", line)))
        for place, number in enumerate(named):
            line = line.replace(number, versions[place if len(named) > 1 else -1])
        line = re.sub(r"\bNUMBER\b", versions[0] if versions else "", line)
        return re.sub(r"(\S*)/<number>", lambda found: str(artifacts_of(self.folder / found[1])[-1]), line)

    def versions(self):
        """Return the numbers of the versions that were pushed, in order."""
        places = ("runs/*/serving/[0-9]*", "my_project/runs/*/serving/[0-9]*")
        return sorted({path.name for place in places for path in self.folder.glob(place)})

    def link(self, name, place):
        """Make a folder's name on the pages lead to where it is here."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).unlink(missing_ok=True)
        (self.folder / name).symlink_to(self.folder / place, target_is_directory=True)

    def execute(self, page, text, before, after=""):
        """Run the Python block of a page that has a text, between lines of the reader's own program."""
        legacy_keras = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'"
        program = "\n".join([legacy_keras, before, block_with(page, text).text, after])
        printed = self.call("python", "-c", self.with_numbers(program))
        self.note(text)
        return printed


def commands_of_page(page):
    return [line for block in blocks_of(page) for line in commands_of(block.text)]


def artifacts_of(folder):
    """Return the artifacts in a folder of one channel, the oldest first."""
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
