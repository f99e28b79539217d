"""Text processing: normalization, word splitting and language identification."""
