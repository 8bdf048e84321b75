"""Room of deltas: an exported model that takes over changed rows, tokens and weights while it is served."""
