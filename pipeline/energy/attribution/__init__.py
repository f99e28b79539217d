"""Attribute the energy of nodes to jobs: choose a reading of each part, and divide it with its error."""
