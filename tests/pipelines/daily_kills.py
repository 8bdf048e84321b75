"""Runs two days of data one after the other; kills each run at random times and repeats its command.

    python tests/pipelines/daily_kills.py FOLDER KILLS SEED [COMMAND]

prints a JSON object: how many calls were killed and in which nodes, how long it took, and the result of the chain of
runs. Each call is a forked child of this process, which has already imported TFX. This saves only the time of the
imports: the child executes all of `tfx-embeddings run`, and can be killed at any point in it. If COMMAND is `follow`,
the child executes `tfx-embeddings follow --until-idle` instead, and the file of the second day arrives after the first.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.two_days import CONFIG, DAY, chain_of, write_day

HZ = os.sysconf("SC_CLK_TCK")
SHORT, LONG = 8.0, 45.0  # CPU seconds until a kill: before SHORT some nodes end, before LONG the trainer too


def main():
    folder, kills, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    command = sys.argv[4] if len(sys.argv) > 4 else "run"
    folder.mkdir(parents=True)
    (folder / "my.yaml").write_text(CONFIG)
    load()
    begun = time.monotonic()
    killed = run_days(folder, command, [kills // 2, kills - kills // 2], random.Random(seed))
    nodes = {node: killed.count(node) for node in sorted(set(killed))}
    took = round(time.monotonic() - begun)
    sys.stdout.write(json.dumps({"killed": len(killed), "in": nodes, "seconds": took, **chain_of(folder)}) + "\n")


def load():
    """Import what a run needs. No TensorFlow operation may run in this process, or forking it would be unsafe."""
    from pipelines.console.quiet import load_tensorflow, silence

    silence()
    load_tensorflow()
    from pipelines.local import following  # noqa: F401


def run_days(folder, command, kills, chance):
    """Run both days: kill each as often as `kills` says, then run it to its end twice. Return the node of each kill."""
    killed = []
    for day, wanted in zip((1, 2), kills, strict=True):
        write_day(folder, day, {1: range(30), 2: range(10, 40)}[day])
        arguments = {"run": DAY[day], "follow": []}[command]
        given = [command, str(folder / "my.yaml"), *(part for setting in arguments for part in ("--set", setting))]
        given += ["--until-idle"] if command == "follow" else ["--no-quiet"]
        done = 0
        while done < wanted:
            long = (SHORT, LONG if command == "run" else 2 * SHORT)
            came = call(folder, given, chance.uniform(*chance.choice([(0.1, SHORT), long])))
            if came is None:  # it ended before the kill: the day is finished, and the next call must be killed sooner
                if command == "follow":  # which then has nothing to do, and ends before anything can be killed
                    break
                came = call(folder, given, chance.uniform(0.1, SHORT / 3))
            if came is not None:
                done += 1
                killed.append(came)
        for _ in range(2):  # the second emulates a cron job that runs a finished day again
            if call(folder, given, None) is not None:
                raise RuntimeError("a call that nobody kills was killed")
    return killed


def call(folder, arguments, cpu_seconds):
    """Run a command in a child process, and kill it after `cpu_seconds`, or never if that is None.

    Returns:
      The node that was running when the child was killed, or None if the child ended before.

    Raises:
      RuntimeError: the child ended with an exit code other than 0.
    """
    log = folder / "log.txt"
    child = os.fork()
    if child == 0:
        os.setsid()
        with open(log, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = 1
        try:
            from pipelines.commands import cli

            cli.main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(code)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if cpu_seconds is not None and cpu_time(child) > cpu_seconds:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            cpu_seconds = None
        time.sleep(0.02)
    if os.WIFSIGNALED(status):
        return node_of(log)
    if os.WEXITSTATUS(status):
        raise RuntimeError(f"{arguments} ended with {os.WEXITSTATUS(status)}: {log.read_text()}")
    return None


def cpu_time(pid):
    """Return the CPU seconds of a process and its ended children. Other load on the machine hardly changes them."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / HZ
    return 0.0


def node_of(log):
    """Return the node that was running when a call was killed: the last one whose start is in its log, or "start"."""
    begun = [line for line in log.read_text().splitlines() if line.startswith("[") and line.endswith("...")]
    return begun[-1].split("] ")[1].removesuffix(" ...") if begun else "start"


if __name__ == "__main__":
    main()
