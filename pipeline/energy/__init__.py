"""The energy of jobs, measured or estimated: meters, accounting, forecasts."""
