"""Handwritten digits, learnt by a few nodes together."""
