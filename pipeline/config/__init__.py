"""The configuration of a run: its sections, their validation, and the platform that it runs on."""
