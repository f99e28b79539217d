"""What everything stands on: errors, hashes, files, the base of all settings, text in pages."""
