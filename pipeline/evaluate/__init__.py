"""Benchmarks with lm-eval."""
