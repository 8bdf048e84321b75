"""Files that outlive, or must not outlive, the process that writes them. Loads no TensorFlow."""

from embedding_core.storage.digests import digest_of
from embedding_core.storage.durable import free_name, sync, sync_tree
from embedding_core.storage.folder_lock import locked_folder
from embedding_core.storage.scratch import scratch_folder, scratch_tempdir

__all__ = ["digest_of", "free_name", "locked_folder", "scratch_folder", "scratch_tempdir", "sync", "sync_tree"]
