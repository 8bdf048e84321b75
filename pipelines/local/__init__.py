"""Runs the pipeline in this process, and keeps its work_dir, its ML Metadata and its log in order."""
