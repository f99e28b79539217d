"""From raw text to clean documents: reading, filtering, deduplication, statistics."""
