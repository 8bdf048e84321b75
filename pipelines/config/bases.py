"""Names the words that select a previous run, in place of an address."""

from __future__ import annotations

PUSHED, SERVED, TRAINED, LATEST = "pushed", "served", "trained", "latest"
WORDS = (PUSHED, SERVED, TRAINED, LATEST)
"""The newest version that was pushed and not rolled back; the newest in the serving folder; the newest training that
finished, pushed or not; and the old name of one of these, which warns."""
