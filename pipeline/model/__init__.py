"""Models, an architecture a folder, and their exchange with Hugging Face."""
