"""From raw text to clean documents: reading, refusal by licence and opt-out, filtering, deduplication, statistics."""
