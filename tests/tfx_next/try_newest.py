"""Tries to resolve a newer TFX on each Python, newest Python first, and reports what blocks it.

    python tests/tfx_next/try_newest.py

Prints for each Python what a TFX newer than the locked one resolves to, or which packages block it: first for this
machine, then for one with glibc 2.39. Then downloads the newest TFX without its dependencies, and looks up in
its source every name that this project imports from TFX, and every method that `components/compat.py` overrides.
"""

import ast
import itertools
import re
import subprocess
import sys
import tempfile
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
PYTHONS = ("3.13", "3.12", "3.11", "3.10")
PLATFORMS = {"this machine": [], "glibc 2.39": ["--python-platform", "x86_64-manylinux_2_39"]}
SHOWN = re.compile(r"^(?:tfx|tensorflow|ml-metadata|apache-beam|protobuf|numpy|pyarrow|kfp)==.+$", re.MULTILINE)
CHOSEN = re.compile(r"(?:tensorflow|keras|protobuf|numpy|pyarrow|ml[-_]metadata|apache[-_]beam|kfp)\b")
REASON = re.compile(r"(?:Because |and )?(\S+) has no wheels with a matching ([\w ]+?) \(e\.g\., `([^`]+)`\)")


def locked_version():
    return re.search(r"^tfx==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[1]


def resolve(python, requirements, platform):
    """Return what the requirements resolve to on a Python, or the packages that block them, as a line of text."""
    command = [UV, "pip", "compile", "--quiet", "-", "--python-version", python, "--no-header", "--no-annotate"]
    done = subprocess.run([*command, *platform], input=requirements, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return f"resolves: {', '.join(SHOWN.findall(done.stdout))}"
    text = " ".join(done.stderr.split())
    blocking = [f"{package} has no wheel with the {what} {tag}" for package, what, tag in REASON.findall(text)]
    return f"blocked: {'; '.join(dict.fromkeys(blocking)) or text[:500]}"


def source_of(requirement, folder):
    """Download the newest TFX and its SDK without dependencies, and return the metadata of TFX."""
    command = [UV, "pip", "install", "--quiet", "--no-deps", "--target", folder, "--python", sys.executable]
    subprocess.run([*command, requirement], check=True)
    (metadata,) = Path(folder).glob("tfx-*.dist-info/METADATA")
    found = message_from_string(metadata.read_text())
    subprocess.run([*command, f"ml-pipelines-sdk=={found['Version']}"], check=True)
    return found


def imported_names():
    """Map each (module, name) that `components` and `pipelines` import from TFX to the files that import it."""
    names = {}
    for path in sorted(path for room in ("components", "pipelines") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tfx":
                for alias in node.names:
                    names.setdefault((node.module, alias.name), set()).add(path.relative_to(ROOT).as_posix())
    return names


def definitions(body):
    """Yield the names that a module or class defines or imports, also within `if` and `try`."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            yield from definitions([*node.body, *node.orelse])


def module_path(folder, module):
    path = folder.joinpath(*module.split("."))
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)


def exists(folder, module, name):
    if module_path(folder, f"{module}.{name}") is not None:
        return True
    path = module_path(folder, module)
    return path is not None and name in definitions(ast.parse(path.read_text()).body)


def overridden(folder):
    """Yield each method of CheckedLauncher except `__init__`, and how Launcher's arguments compare.

    The result is "same", "changed", or "missing" if Launcher does not have the method.
    """
    ours = class_methods(ROOT / "components" / "compat.py", "CheckedLauncher")
    theirs = class_methods(module_path(folder, "tfx.orchestration.portable.launcher"), "Launcher")
    for name in sorted(ours.keys() - {"__init__"}):
        yield (
            f"Launcher.{name}",
            "missing" if name not in theirs else "same" if ours[name] == theirs[name] else "changed",
        )


def class_methods(path, name):
    body = next(node.body for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == name)
    return {node.name: [one.arg for one in node.args.args] for node in body if isinstance(node, ast.FunctionDef)}


def main():
    """Print the report."""
    requirement = f"tfx>{locked_version()}"
    for (name, platform), python in itertools.product(PLATFORMS.items(), PYTHONS):
        found = resolve(python, f"{requirement}\nkfp", platform)
        print(f"{requirement} and kfp, Python {python}, {name}: {found}")
    with tempfile.TemporaryDirectory() as place:
        metadata = source_of(requirement, place)
        needs = [one for one in metadata.get_all("Requires-Dist") if "extra ==" not in one]
        print(f"\ntfx {metadata['Version']} alone: Python {metadata['Requires-Python']}; it needs")
        print(*(f"  {one}" for one in needs if CHOSEN.match(one)), sep="\n")
        names = imported_names()
        missing = {key: files for key, files in names.items() if not exists(Path(place), *key)}
        print(f"{len(names) - len(missing)} of {len(names)} names that this project imports from TFX are in its source")
        for (module, name), files in missing.items():
            print(f"  {module}.{name} is not; {', '.join(sorted(files))}")
        print(*(f"  {method}: {state}" for method, state in overridden(Path(place))), sep="\n")


if __name__ == "__main__":
    main()
