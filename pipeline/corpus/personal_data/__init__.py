"""Finds personal data of the Netherlands in text, and replaces it by markers or synthetic values."""
