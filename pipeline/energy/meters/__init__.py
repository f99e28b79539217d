"""The meters of a node that are read while jobs run."""
