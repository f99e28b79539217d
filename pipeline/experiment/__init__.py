"""Experiments: cells that vary a model and their comparison; scaling laws, and overviews of runs."""
