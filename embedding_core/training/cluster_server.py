"""Serves as the worker or the parameter server that TF_CONFIG names.

Start it with `python -m embedding_core.training.cluster_server`.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Serve until the process is ended; it may serve several trainings, one after the other.

    Returns:
      1 with a message if TF_CONFIG names no such task, or its address cannot be used.
    """
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    from embedding_core.errors import ConfigError
    from embedding_core.training.server_cluster import cluster_task, serve

    try:
        task = cluster_task()
        if task is None or not task.serves:
            kind = "no cluster" if task is None else repr(task.kind)
            raise ConfigError(f"TF_CONFIG names {kind} as this process' task: it must be 'worker' or 'ps'.")
        serve(task)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
