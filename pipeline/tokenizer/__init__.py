"""Training a tokenizer and measuring its fertility."""
