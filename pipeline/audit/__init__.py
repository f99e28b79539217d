"""Checks of a finished run: steps that are run again, lineage of documents and tokens, differences of code."""
