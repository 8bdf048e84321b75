"""Damages files: flips a bit, truncates, overwrites with zeros, swaps or deletes."""

import os
import random
import shutil

KINDS = ("flip", "truncate", "zero", "swap", "delete")


def damage(path: str, kind: str, random_: random.Random, other: str) -> None:
    """Damage one file.

    Args:
      path: the file.
      kind: one of KINDS.
      random_: chooses the position.
      other: the file to swap it with, for "swap".
    """
    if kind == "delete":
        os.remove(path)
    elif kind == "swap":
        shutil.move(path, path + ".swapped")
        shutil.move(other, path)
        shutil.move(path + ".swapped", other)
    else:
        with open(path, "rb") as file:
            data = bytearray(file.read())
        with open(path, "wb") as file:
            file.write(_changed(data, kind, random_))


def _changed(data: bytearray, kind: str, random_: random.Random) -> bytearray:
    at = random_.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << random_.randrange(8)
    elif kind == "truncate":
        del data[at:]
    else:
        size = min(4096, len(data) - at)
        data[at : at + size] = bytes(size)
    return data
