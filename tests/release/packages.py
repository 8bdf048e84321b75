"""Summarizes what the release installs: the SBOM, the licences, and what the index tells about vulnerabilities.

Reads the files that published tools wrote into a folder: sbom.json (cyclonedx-py), licenses.json (pip-licenses) and
audit.json (pip-audit). Exit code 1: a package is missing in a file, or a licence is not among the permitted.
Known vulnerabilities are printed, with the version that fixes each; TFX's pins decide whether that version fits.
"""

import collections
import json
import re
import sys
from pathlib import Path

# Licences under which the packages may be used beside Apache 2.0, as parts of the names that packages give.
PERMITTED = re.compile(
    r"apache|\bbsd|\bmit\b|mit-|\bisc\b|mozilla|mpl|python software|psf|0bsd|unlicense|public domain|zlib|hpnd|cnri",
    re.I,
)
# Packages whose metadata names no licence, with what their licence file says.
KNOWN = {"namex": "Apache 2.0"}


def pins(lock):
    """Return the packages of the lock with their versions."""
    found = re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock.read_text(), re.MULTILINE)
    return {normal(name): version for name, version in found}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def checked_sbom(folder, installed):
    components = json.loads((folder / "sbom.json").read_text())["components"]
    names = {normal(component["name"]) for component in components}
    print(f"sbom.json: {len(names)} packages, CycloneDX")
    return [f"{name} is installed and not in the SBOM" for name in sorted(installed - names)]


def checked_licences(folder):
    entries = json.loads((folder / "licenses.json").read_text())
    counts = collections.Counter(entry["License"] for entry in entries)
    most = ", ".join(f"{name} {count}" for name, count in counts.most_common(6))
    print(f"licenses.json: {len(entries)} packages; {most}, ...")
    unclear = [entry for entry in entries if not PERMITTED.search(KNOWN.get(normal(entry["Name"]), entry["License"]))]
    problems = [
        f"{entry['Name']} {entry['Version']}: licence {entry['License']!r} is not permitted" for entry in unclear
    ]
    return {normal(entry["Name"]) for entry in entries}, problems


def show_audit(folder, locked):
    if not (folder / "audit.json").is_file():
        print(f"audit.json: pip-audit wrote none, so nothing is known of the {len(locked)} packages of the lock")
        return
    entries = json.loads((folder / "audit.json").read_text())["dependencies"]
    skipped = [entry for entry in entries if "skip_reason" in entry]
    answered = len(entries) - len(skipped)
    known = [(package, vulnerability) for package in entries for vulnerability in package.get("vulns", ())]
    print(
        f"audit.json: of {len(locked)} packages of the lock, the index told of {answered}: {len(known)} vulnerabilities"
    )
    if skipped:
        print(f"  not checked: {len(skipped)} packages, such as: {skipped[0]['skip_reason']}")
    for package, vulnerability in known:
        print(
            f"  {package['name']} {package['version']}: {vulnerability['id']}, fixed in {vulnerability['fix_versions']}"
        )


def main(folder, lock):
    locked = pins(lock)
    installed, problems = checked_licences(folder)
    problems += checked_sbom(folder, installed)
    show_audit(folder, locked)
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
