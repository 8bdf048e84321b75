"""Makes vocabularies of given tokens, and their files."""

import numpy as np
import pyarrow as pa

from embedding_core.vocabulary import Vocabulary


def vocabulary_of(tokens, name="v", counts=None, **facts):
    """Make a vocabulary of tokens in this order; without `counts`, the first is counted most and the last once."""
    counts = np.arange(len(tokens), 0, -1) if counts is None else np.array(counts)
    facts = {"total_count": int(counts.sum()), "distinct": len(tokens), **facts}
    return Vocabulary(name=name, tokens=pa.array(tokens, pa.large_binary()), counts=counts.astype(np.int64), **facts)


def write_tokens(folder, vocabularies):
    """Write the lists of tokens, one token a line; return the paths by vocabulary."""
    paths = {name: folder / f"{name}.txt" for name in vocabularies}
    for name, tokens in vocabularies.items():
        paths[name].write_bytes(b"".join(token + b"\n" for token in tokens))
    return {name: str(path) for name, path in paths.items()}
