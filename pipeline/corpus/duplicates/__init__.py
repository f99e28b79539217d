"""Duplicates: MinHash signatures, documents with equal keys, similarity of texts, repeated paragraphs."""
