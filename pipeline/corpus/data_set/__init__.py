"""The published data set: its card, its Croissant metadata, its page of plots."""
