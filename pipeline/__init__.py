"""Polder: from openly licensed text to a documented language model."""

import gc

# A step's short life goes into loading libraries, a sixth of it into looking through their objects for dead cycles.
gc.set_threshold(50_000, 10, 10)
