"""Finds personal data of the Netherlands in text and replaces it by markers or by values that belong to nobody."""

from pipeline.corpus.personal_data.fields import Fields, MaskFields, marked
from pipeline.corpus.personal_data.masking import MaskPersonalData, find, mask

__all__ = ["Fields", "MaskFields", "MaskPersonalData", "find", "marked", "mask"]
