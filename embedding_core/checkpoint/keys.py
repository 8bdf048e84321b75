"""Names of tables and slots as TensorFlow's checkpoints spell them."""

from __future__ import annotations

__all__ = ["VALUE", "training_key"]

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def training_key(key: str, root: str = "embedding") -> str:
    """Where a table (`t`) or slot (`t/momenta`) is in a `tf.train.Checkpoint` with the tables at `root` (or "")."""
    return f"{root}{'/' if root else ''}{key.replace('.', '..').replace('/', '.S')}{VALUE}"
