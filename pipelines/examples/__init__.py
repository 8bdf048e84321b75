"""Configurations that run as they are, and what prepares their data."""
