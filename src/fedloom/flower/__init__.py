"""Flower: the same methods on a real network."""
