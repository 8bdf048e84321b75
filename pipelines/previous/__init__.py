"""Finds the previous run that a run starts from, and refuses data that its tables were already trained on."""
