"""The Llama-3 model and its exchange with Hugging Face."""
