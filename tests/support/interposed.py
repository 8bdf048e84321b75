"""Runs modules whose calls that change files are counted or fail: `interpose.c` is preloaded.

A module forks a process for each trial, arms a fault in it, and prints one line of JSON at the end.
"""

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COUNT, KILL, FULL = 1, 2, 3  # modes of interpose.c
HERE = Path(__file__).parent
SHORT_AND_LONG = [pytest.param(False, id="short"), pytest.param(True, id="long", marks=pytest.mark.slow)]


def run_preloaded(folder, module, *arguments):
    """Run a module with the library preloaded; return the object that it prints last."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and Linux")
    library = folder / "interpose.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-ldl", "-lpthread"]
    subprocess.run([compiler, HERE / "interpose.c", *flags, "-o", library], check=True)
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    sys.stdout.write(line + "\n")
    return json.loads(line)


def arm(mode, call=0):
    ctypes.CDLL(None).interpose_arm(mode, call)


def disarm():
    """Return the calls since `arm`: name and path."""
    end = ctypes.CDLL(None).interpose_disarm
    end.restype = ctypes.c_char_p
    return end().decode().splitlines()


def forked(task):
    """Run `task(tell)` in a fork; return its exit status and what it told, by the first word."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        status = 1
        try:
            task(lambda *words: os.write(writer, (json.dumps(words) + "\n").encode()))
            status = 0
        except BaseException as error:
            os.write(writer, (json.dumps(["failed", f"{type(error).__name__}: {error}"]) + "\n").encode())
        os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = dict(json.loads(line) for line in lines)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told


def counted(act, ready=lambda: None):
    """Return the kinds of the calls that `act` makes with what `ready` returns, in a fork."""

    def count(tell):
        prepared = ready()
        arm(COUNT)
        act(prepared)
        tell("calls", [line.split()[0] for line in disarm()])

    status, told = forked(count)
    assert status == 0, told
    return told["calls"]


def points_of(kinds, trials, seed):
    """Return numbers of calls, from 1: all of them, or equally many of each kind and more of the frequent ones."""
    if trials >= len(kinds):
        return list(range(1, len(kinds) + 1))
    by_kind, chosen = {}, []
    for number, kind in enumerate(kinds, start=1):
        by_kind.setdefault(kind, []).append(number)
    for left, numbers in enumerate(sorted(by_kind.values(), key=len)):
        share = (trials - len(chosen)) // (len(by_kind) - left)
        chosen += random.Random(seed).sample(numbers, min(share, len(numbers)))
    return sorted(chosen)
