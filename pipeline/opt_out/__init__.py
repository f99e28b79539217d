"""Opting out: which documents their holders reserved, and where they and their copies still are."""
