"""Evaluation items: their texts, the n-grams of these, and the search for them in documents."""
