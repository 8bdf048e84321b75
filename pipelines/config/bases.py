"""Names the words that select a previous run, in place of an address."""

from __future__ import annotations

PUSHED, SERVED, TRAINED, LATEST = "pushed", "served", "trained", "latest"
WORDS = (PUSHED, SERVED, TRAINED, LATEST)
"""The first three words select, in this order, the newest version that was pushed and not rolled back, the newest
version in the serving folder, and the newest finished training (pushed or not). The last word is a former name of the
first or the third, and gives a warning."""
