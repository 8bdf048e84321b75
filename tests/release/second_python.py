"""Prints a Python of this minor version and another patch version, for the environment of `make release-check`.

Installed ones are preferred; if there is none, uv tries to download one. If it cannot, this process's own is printed.
What was found or tried is printed on standard error.
"""

import json
import platform
import subprocess
import sys

MINOR = ".".join(platform.python_version_tuple()[:2])


def installed(uv):
    """Return the paths of installed interpreters by version; those behind a version manager only if it lists them."""
    command = [uv, "python", "list", "--only-installed", "--output-format", "json", MINOR]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        interpreter["version"]: interpreter["path"]
        for interpreter in json.loads(done.stdout)
        if interpreter["implementation"] == "cpython"
    }


def main(uv):
    own = platform.python_version()
    found = installed(uv)
    if not {*found} - {own}:
        download = subprocess.run([uv, "python", "install", MINOR], capture_output=True, text=True, check=False)
        if download.returncode:
            causes = [line.strip() for line in download.stderr.splitlines() if "cause" in line or "error" in line]
            print(f"tried `uv python install {MINOR}`: {causes[-1] if causes else 'it failed'}", file=sys.stderr)
        found = installed(uv)
    others = sorted({*found} - {own})
    if not others:
        print(f"there is no second patch version of Python {MINOR}: {own} is used", file=sys.stderr)
        print(sys.executable)
        return
    print(f"the project's Python is {own}, the release is installed on {others[-1]}", file=sys.stderr)
    print(found[others[-1]])


if __name__ == "__main__":
    main(sys.argv[1])
