"""Finds personal data of the Netherlands in text and replaces it by markers or by values that belong to nobody."""

from pipeline.corpus.personal_data.block import MaskPersonalData, find, mask
from pipeline.corpus.personal_data.fields import Fields, MaskFields, marked

__all__ = ["Fields", "MaskFields", "MaskPersonalData", "find", "marked", "mask"]
