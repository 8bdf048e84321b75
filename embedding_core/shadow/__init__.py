"""Replays recorded requests on two versions of a model, and compares answers, refusals, latency and memory."""
