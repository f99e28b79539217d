"""Models: two modules for each architecture, and their exchange with Hugging Face."""
