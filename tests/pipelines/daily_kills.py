"""A campaign: two days are run one after the other, each call is killed at random moments and given again.

    python tests/pipelines/daily_kills.py FOLDER KILLS SEED

prints a JSON object: how many calls were killed and in which node, and what the chain of runs left. A call is a child
of this process, which has loaded TFX once: only the imports are saved, what is killed is `tfx-embeddings run` from its
first line on.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.pipelines.two_days import CONFIG, DAY, chain_of, write_day

HZ = os.sysconf("SC_CLK_TCK")
SHORT, LONG = 8.0, 45.0  # CPU seconds; in the shorter ones some nodes end, in the longer ones the trainer does too


def main():
    folder, kills, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(parents=True)
    (folder / "my.yaml").write_text(CONFIG)
    for day, items in ((1, range(30)), (2, range(10, 40))):
        write_day(folder, day, items)
    load()
    begun = time.monotonic()
    killed = run_days(folder, [kills // 2, kills - kills // 2], random.Random(seed))
    nodes = {node: killed.count(node) for node in sorted(set(killed))}
    took = round(time.monotonic() - begun)
    sys.stdout.write(json.dumps({"killed": len(killed), "in": nodes, "seconds": took, **chain_of(folder)}) + "\n")


def load():
    """Import what a run needs; nothing of TensorFlow is executed, so that children may be forked."""
    from pipelines.console.quiet import load_tensorflow, silence

    silence()
    load_tensorflow()
    from pipelines.local import run_local  # noqa: F401


def run_days(folder, kills, chance):
    """Run both days; each is killed so often, and then given until it ends well. Returns where the kills came."""
    killed = []
    for day, wanted in zip((1, 2), kills, strict=True):
        done = 0
        while done < wanted:
            came = call(folder, day, chance.uniform(*chance.choice([(0.1, SHORT), (SHORT, LONG)])))
            if came is None:  # it finished before: what is left of the kills comes upon calls of a finished day
                came = call(folder, day, chance.uniform(0.1, SHORT / 3))
            if came is not None:
                done += 1
                killed.append(came)
        for _ in range(2):  # the second call is the cron's retry after success
            if call(folder, day, None) is not None:
                raise RuntimeError("a call that nobody kills was killed")
    return killed


def call(folder, day, cpu_seconds):
    """One call of the day's command, killed after so much CPU time; returns the node that it was in, None if it ended.

    Raises:
      RuntimeError: it ended by itself, and not with 0.
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

            cli.main(["run", str(folder / "my.yaml"), *(part for one in DAY[day] for part in ("--set", one))])
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
        raise RuntimeError(f"day {day} ended with {os.WEXITSTATUS(status)}: {log.read_text()}")
    return None


def cpu_time(pid):
    """CPU seconds of a process and of its children that ended: kills hit the same places on a busy machine."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / HZ
    return 0.0


def node_of(log):
    """The node that a call was in when it was killed, by its last line."""
    begun = [line for line in log.read_text().splitlines() if line.startswith("[") and line.endswith("...")]
    return begun[-1].split("] ")[1].removesuffix(" ...") if begun else "start"


if __name__ == "__main__":
    main()
