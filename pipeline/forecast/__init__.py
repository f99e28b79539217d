"""Forecasts of time, memory and size before anything runs, from the configuration and from finished runs."""
