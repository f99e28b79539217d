"""Errors, hashes, files, the base of all settings, text in pages, and the log of attestations."""
