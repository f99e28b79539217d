"""The quality of a text as a number: a classifier trained on what the configuration calls good and bad, or of others."""
