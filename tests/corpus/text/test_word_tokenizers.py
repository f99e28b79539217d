"""The fast word split equals spaCy's, at each length that its rules inspect."""

from __future__ import annotations

import pytest
import spacy

from pipeline.corpus.text.word_tokenizers import spacy_tokenizer

UNITS = "2km/h 2km/h. 50µg, 3m² 3US$ 3US$, US$5 +5 +a 20°C. 1°F. 12% 1,5 1.000 2-3 2k 4GB) ('90)"
AFFIXES = "VOC. VOC V. aB. a%. ,,dat '' dat'' (a): :) a:) [[a]] —a a— …a a… *a* `a`. «a» a's A’S a.' ---"
INSIDE = "wel-bekend a--b a—b a,b a:b a/b a=b a.B a.b :a -a a-2 2-a http://x.nl/a-b x@y.nl www.a.nl, a.nl/b--c 1.2.3.4"
EXCEPTIONS = "don't. (e.g.) bijv. bijv., xD a.m.: 'Tis he's-he's (can't) :-), C++ o.a.-a"
DOTS = "dat.... ....dat ..a a..b ...a... .. ." + " " + "(" * 20 + "a" + " " + "=" * 40


@pytest.mark.parametrize("language", ["nl", "en"])
def test_words_equal_those_of_spacy(language: str) -> None:
    pretokens = " ".join([UNITS, AFFIXES, INSIDE, EXCEPTIONS, DOTS]).split()
    tokenizer = spacy.blank(language).tokenizer
    assert spacy_tokenizer(language)(pretokens) == [[token.text for token in tokenizer(each)] for each in pretokens]
