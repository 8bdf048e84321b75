"""Where tables live and how a step updates them: on this process, or on a TPU, real or simulated."""

from embedding_core.engines.host import HostEngine

__all__ = ["HostEngine"]
