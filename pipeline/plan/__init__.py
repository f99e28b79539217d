"""Compute, memory, time, energy and carbon before anything runs."""
