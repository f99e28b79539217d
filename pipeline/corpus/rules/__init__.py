"""The rules that remove documents, their thresholds and their presets."""
