"""Copies: MinHash signatures, groups of near-duplicates, repeated paragraphs."""
