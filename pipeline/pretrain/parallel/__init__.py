"""How processes share a model and its batches: the backends and the kinds of parallelism."""
