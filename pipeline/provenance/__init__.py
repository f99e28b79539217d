"""The crate, verification, lineage and comparison of runs."""
