"""Provides models to use or to copy: each module has `build(config, embeddings, dense, **arguments)`."""
