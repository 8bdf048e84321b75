"""Takes each optional room away in a copy of the checkout, and runs the checks, the fast tests and the demo there.

The environment variable ROOMS names some of them.
A room's tests are in `tests/<package>/<room>` and `tests/<room>`, or have the marker `room`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from embedding_core.rooms import ROOMS

ROOT = Path(__file__).parents[1]
TARGETS = ("reference", "check", "test-fast", "demo")


def copy_without(room, folder):
    """Copy the files that git knows into a folder, but for those of a room; return the number of those left out."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    left_out = 0
    for name in filter(None, files.stdout.split("\0")):
        if room in Path(name).parent.parts:
            left_out += 1
        elif (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return left_out


def main(rooms):
    failed = []
    for room in rooms:
        with tempfile.TemporaryDirectory() as folder:
            print(f"== without {room}: {copy_without(room, Path(folder))} files fewer", flush=True)
            for target in TARGETS:
                begin = time.monotonic()
                done = subprocess.run(
                    ["make", "--no-print-directory", target],
                    cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                )  # fmt: skip
                print(
                    f"{target}: {'FAILED' if done.returncode else 'passed'}, {time.monotonic() - begin:.0f} s",
                    flush=True,
                )
                if done.returncode:
                    failed.append(f"{room}: {target}")
                    print(done.stdout, flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(os.environ.get("ROOMS", "").split() or ROOMS)
