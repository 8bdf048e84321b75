"""Names the words that select a previous run, in place of an address."""

from __future__ import annotations

PUSHED, SERVED, TRAINED, LATEST = "pushed", "served", "trained", "latest"
WORDS = (PUSHED, SERVED, TRAINED, LATEST)
"""The words. Each selects a previous run:

- "pushed": the newest version that was pushed and not rolled back.
- "served": the newest version in the serving folder.
- "trained": the newest finished training, pushed or not.
- "latest": a former name of "trained", which gives a warning; for `evaluation.baseline`, a former name of "pushed".
"""
