"""What is opted out of is found in a corpus, with the fixtures of its chapter."""

from tests.corpus.conftest import as_json_lines, chain, gzipped, new_chain, texts

__all__ = ["as_json_lines", "chain", "gzipped", "new_chain", "texts"]
