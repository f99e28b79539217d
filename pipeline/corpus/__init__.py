"""From raw text to clean documents: reading, refusal by license and opt-out, filtering, deduplication, statistics."""
