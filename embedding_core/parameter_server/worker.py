"""Serves as the worker or the parameter server that TF_CONFIG names.

Start it with `python -m embedding_core.parameter_server.worker`, or as a task of a trainer's CustomJob.
"""

from __future__ import annotations

import os
import sys


def serves_another() -> bool:
    """Serve the chief of a cluster if TF_CONFIG says that this process is its worker or parameter server.

    Returns:
      whether this process was one. It serves until it is ended.

    Raises:
      ConfigError: TF_CONFIG is invalid, or the address cannot be used.
    """
    from embedding_core.parameter_server.strategy import cluster_task, serve

    task = cluster_task()
    if task is None or not task.serves:
        return False
    serve(task)
    return True


def main() -> int:
    """Serve until the process is ended; it may serve several trainings, one after the other.

    Returns:
      1 with a message if TF_CONFIG names no such task, or its address cannot be used.
    """
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    from embedding_core.errors import ConfigError
    from embedding_core.parameter_server.strategy import cluster_task

    try:
        if not serves_another():
            task = cluster_task()
            kind = "no cluster" if task is None else repr(task.kind)
            raise ConfigError(f"TF_CONFIG names {kind} as this process' task: it must be 'worker' or 'ps'.")
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
