"""Benchmarks with lm-eval: scores with intervals, baselines, and comparisons of checkpoints."""
