"""Polder: from openly licensed text to a documented language model."""
