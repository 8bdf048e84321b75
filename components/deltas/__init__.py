"""Room of deltas: pushes what changed since the served version, and applies it to servers that run."""
