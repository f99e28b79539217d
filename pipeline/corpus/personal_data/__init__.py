"""Finds personal data of the Netherlands in text, and replaces it by markers or synthetic values."""

from pipeline.corpus.personal_data.metadata_masking import MetadataMasker, MetadataMaskingStep, mask_short_text
from pipeline.corpus.personal_data.text_masking import PersonalDataMaskingStep, find_personal_data, mask_personal_data

__all__ = [
    "MetadataMasker",
    "MetadataMaskingStep",
    "PersonalDataMaskingStep",
    "find_personal_data",
    "mask_personal_data",
    "mask_short_text",
]
