"""Datasets, and their division among clients."""
