"""The crate, verification, lineage, comparison and packing of runs."""
