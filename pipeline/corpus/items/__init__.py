"""Evaluation items: their texts, the n-grams of these, and where these stand in documents."""
