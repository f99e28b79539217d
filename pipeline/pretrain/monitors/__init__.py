"""Monitors of a training, which change nothing of it: metrics, telemetry, watchdog, memory advice."""
