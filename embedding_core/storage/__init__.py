"""Writes files and folders whole or not at all, seals, verifies and locks them, and computes their digests.

Imports TensorFlow only for a path that is an address of an object store.
"""

from embedding_core.storage.digests import FileDigest, file_digest, folder_digests, masked
from embedding_core.storage.durable import free_name, sync, sync_tree, whole_file
from embedding_core.storage.file_access import (
    StrPath,
    bounded_content,
    check_regular,
    exists,
    file_names_below,
    is_folder,
    is_remote,
    make_folders,
    move,
    names_in,
    open_file,
    read_bounded,
    remove_tree,
)
from embedding_core.storage.locks import locked_file, locked_folder, open_lock_file
from embedding_core.storage.permissions import readable_as, umask_of
from embedding_core.storage.scratch import environment_variable, scratch_folder, scratch_tempdir
from embedding_core.storage.sealed_folder import SealedFolder
from embedding_core.storage.seals import SEAL, json_digest, read_json, sealed_json, unsealed_json
from embedding_core.storage.whole_folder import (
    hidden_folder,
    put_in_place,
    remove_folder,
    remove_leftovers,
    whole_folder,
)

__all__ = [
    "SEAL",
    "FileDigest",
    "SealedFolder",
    "StrPath",
    "bounded_content",
    "check_regular",
    "environment_variable",
    "exists",
    "file_digest",
    "file_names_below",
    "folder_digests",
    "free_name",
    "hidden_folder",
    "is_folder",
    "is_remote",
    "json_digest",
    "locked_file",
    "locked_folder",
    "make_folders",
    "masked",
    "move",
    "names_in",
    "open_file",
    "open_lock_file",
    "put_in_place",
    "read_bounded",
    "read_json",
    "readable_as",
    "remove_folder",
    "remove_leftovers",
    "remove_tree",
    "scratch_folder",
    "scratch_tempdir",
    "sealed_json",
    "sync",
    "sync_tree",
    "umask_of",
    "unsealed_json",
    "whole_file",
    "whole_folder",
]
