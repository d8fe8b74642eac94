"""Which neurons a model has, what keeping some of them keeps, and smaller models made of those."""
