"""Reads the lineage of artifacts from ML Metadata and from the records beside them."""
