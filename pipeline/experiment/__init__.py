"""Experiments: the cells that they make of a model of the run, and how cells are compared."""
