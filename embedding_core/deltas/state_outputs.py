"""Names the outputs of a model that takes deltas which say what answered, beside the answer."""

from embedding_core.deltas.protocol import MODEL_DIGEST

STATE_OUTPUTS = (MODEL_DIGEST,)
