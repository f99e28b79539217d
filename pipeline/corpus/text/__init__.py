"""Text, words and languages: how a text is repaired, split into words and told by its language."""
