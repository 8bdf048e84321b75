"""Names the words that select a previous run, in place of an address."""

from __future__ import annotations

PUSHED, SERVED, TRAINED, LATEST = "pushed", "served", "trained", "latest"
WORDS = (PUSHED, SERVED, TRAINED, LATEST)
"""In this order: the newest version that was pushed and not rolled back, the newest version in the serving folder, the
newest finished training (pushed or not), and a former name of one of these, which gives a warning."""
