"""The steps of a run: their jobs, settings and versions, stale records, the lock, and checks before a start."""
