"""Whose joules they are: one reading of each part is taken and divided among jobs, with its error."""
