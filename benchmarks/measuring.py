"""Measures variants side by side, in this process or in new ones, and writes tables into pages.

Figures are CPU times where nothing else is said. Variants take turns, so that other load on the machine affects all of
them alike, and a ratio is the median of the ratios of each round.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class Spent(NamedTuple):
    """What a call took: CPU seconds of this process, seconds by the clock."""

    cpu: float
    wall: float


def spent(call: Callable[[], Any], calls: int = 1) -> Spent:
    """Measure the mean of several calls."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        call()
    return Spent((time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls)


def take_turns(turns: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Call each variant once in every round, starting with another one each time; return the results by variant."""
    results: dict[str, list[Any]] = {name: [] for name in turns}
    names = list(turns)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(turns[name]())
    return results


def ratio(own: Sequence[float], base: Sequence[float]) -> str:
    """Return the median and the range of the rounds' ratios."""
    return spread([mine / other for mine, other in zip(own, base, strict=True)], 2)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median of the values, then the least and the most in brackets if they differ."""
    median = f"{statistics.median(values):.{digits}f}"
    return median if len(values) == 1 else f"{median} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def in_new_process(function: Callable[..., Any], *arguments: Any, core: int | None = None, **environment: str) -> Any:
    """Call a function of a module, whose arguments and result are JSON values, in a new process; pin it to a core."""
    module = function.__module__
    if module == "__main__":
        module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    code = f"import json, sys; from {module} import {function.__name__} as call; "
    code += "print(json.dumps(call(*json.loads(sys.argv[1]))))"
    command = [sys.executable, "-W", "ignore", "-c", code, json.dumps(arguments)]
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment})
    return json.loads(done.stdout.splitlines()[-1])


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    return sum(os.times()[:4])


def resources(call: Callable[[], Any]) -> dict[str, float]:
    """Return the CPU and wall seconds of a call, and by how many MB it raised this process' memory at its peak."""
    reset_peak()
    before, cpu, wall = memory_mb("VmRSS"), cpu_seconds(), time.monotonic()
    call()
    spent_cpu, spent_wall = cpu_seconds() - cpu, time.monotonic() - wall
    return {"cpu": spent_cpu, "wall": spent_wall, "peak_mb": memory_mb("VmHWM") - before}


def reset_peak() -> None:
    """Set the peak, VmHWM, to the memory that this process holds now."""
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory_mb(name: str) -> float:
    """Return the resident memory of this process: "VmRSS" for now, "VmHWM" for its peak."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{name}:")[1].split()[0]) / 1024


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    first, *others = ("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others, ""])


def show(text: str, page: pathlib.Path | None, name: str) -> None:
    """Print a table, and write it into a page, if one is given."""
    print(text, flush=True)
    if page:
        write_between(page, name, text)


def write_between(page: pathlib.Path, name: str, text: str) -> None:
    """Replace the text between the marks `<!-- NAME: begin -->` and `<!-- NAME: end -->` of a page.

    Raises:
      SystemExit: the page has no such marks; it stays as it is.
    """
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"{page} has no lines {begin.strip()!r} and {end.strip()!r}: write them where the table goes.")
    page.write_text(before + begin + text + end + after, encoding="utf-8")
