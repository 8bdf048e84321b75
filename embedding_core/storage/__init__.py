"""Files that outlive, or must not outlive, the process that writes them. Loads no TensorFlow."""

from embedding_core.storage.folder_lock import locked_folder
from embedding_core.storage.scratch import scratch_folder, scratch_tempdir

__all__ = ["locked_folder", "scratch_folder", "scratch_tempdir"]
