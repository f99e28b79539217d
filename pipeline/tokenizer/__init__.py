"""Training tokenizers on a sample of a corpus, and measuring how well each fits."""
