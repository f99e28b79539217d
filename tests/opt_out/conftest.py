"""Fixtures of the opt-out tests: the corpus chain and its opt-outs."""

from tests.corpus.conftest import as_json_lines, chain, gzipped, new_chain, texts

__all__ = ["as_json_lines", "chain", "gzipped", "new_chain", "texts"]
