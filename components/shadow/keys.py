"""Declares the YAML section `shadow`, and finds the files of a request log."""

from __future__ import annotations

import glob
import os

from embedding_core.errors import ConfigError
from embedding_core.schema import Json, Section, Text
from embedding_core.shadow.shadow_rules import ShadowRules
from embedding_core.storage import is_remote

SHADOW_FILE = "shadow.json"
"""File of a blessing of Shadow, with every figure and the outcome of every rule."""


class Shadow(ShadowRules):
    """Recorded requests that are replayed on the trained model and on the last pushed version before a push.

    Attributes:
      requests: file of a TensorFlow Serving request log (TFRecords of `PredictionLog`, also gzip), or a glob of such
        files.
      against: version to compare with: "pushed", "served" or "trained" as in `warm_start`, or the folder of a version.
        Before the first push there is none, and the model is blessed.
    """

    SHORT = "requests"
    PATHS = ("requests", "against")

    requests: Text
    against: Text = "pushed"

    def rules(self) -> ShadowRules:
        """Return what is measured and judged, without the paths."""
        return ShadowRules(**{name: getattr(self, name) for name in ShadowRules.model_fields})


class ShadowKeys(Section):
    """Keys that the room adds to the whole file.

    Attributes:
      shadow: recorded requests that are replayed before a push, and bounds; null leaves Shadow out of the pipeline.
    """

    shadow: Shadow | None = None


KEYS = {"": ShadowKeys}


def shadow_of(config: Section) -> Shadow | None:
    """Return the section `shadow` of a whole configuration, if it is given."""
    return config.shadow if isinstance(config, ShadowKeys) else None


# Finds the files of a request log.


def log_files(path: str) -> list[str]:
    """Return the files of a log, sorted.

    Args:
      path: a file or a glob of files; an address of an object store is one file.

    Raises:
      ConfigError: there is none.
    """
    if is_remote(path):
        return [path]
    files = [path] if os.path.isfile(path) else sorted(name for name in glob.glob(path) if os.path.isfile(name))
    if not files:
        raise ConfigError(
            f"no file matches {path!r}: give a request log (TFRecords of `PredictionLog`), or a glob of such files."
        )
    return files


def log_sizes(path: str) -> list[Json]:
    """Return `path`, `size` and times of change `changed` of each file of a log; None for those of an address.

    The times are those of its content and of its inode: programs set only the first one back.
    """
    if is_remote(path):
        return [{"path": path, "size": None, "changed": None}]
    stats = {file: os.stat(file) for file in log_files(path)}
    times = {file: [stat.st_mtime_ns, stat.st_ctime_ns] for file, stat in stats.items()}
    return [{"path": file, "size": stat.st_size, "changed": times[file]} for file, stat in stats.items()]
