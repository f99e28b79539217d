"""spaCy tokenization needs no torch; the name model may need it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import sys
from pathlib import Path
from pipeline.corpus.personal_data.text_masking import PersonalDataMaskingStep
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.text.word_splitting import split_words
PersonalDataMaskingStep(PersonalData(names=sys.argv[1] or None))
print(len(split_words("Jan (en Piet).", "spacy", "nl").numbers_W), "torch" in sys.modules)
import torch
from thinc.compat import has_torch
print(has_torch)
"""


@pytest.mark.parametrize("named", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_spacy_imports_torch_only_for_name_detection(named: bool, names_model: Path) -> None:
    command = [sys.executable, "-c", LOADED, str(names_model) if named else ""]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["6", str(named), str(named)]
