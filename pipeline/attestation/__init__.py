"""Attestations: who says what a job read and wrote, in a log that only grows, signed where there is a key."""
