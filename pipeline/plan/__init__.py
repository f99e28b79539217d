"""Compute, memory, time, energy, carbon and cost before anything runs."""
