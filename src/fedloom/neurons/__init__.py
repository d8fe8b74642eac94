"""Neurons of a model: which numbers belong to each, masks and costs of keeping some, and smaller models of those."""
