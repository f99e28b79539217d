"""Checkpoints: written while the training goes on, read at any world size, whole or refused."""
