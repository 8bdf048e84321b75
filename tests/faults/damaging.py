"""Damages files as disks, networks and people do."""

import os
import random
import shutil

KINDS = ("flip", "truncate", "zero", "swap", "delete")


def damage(path: str, kind: str, random_: random.Random, other: str) -> None:
    """Damage one file.

    Args:
      path: the file.
      kind: one of KINDS.
      random_: chooses where.
      other: the file to swap it with.
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
