"""Settings of interleaved documents. The defaults are the published thresholds of OBELICS.

They are those of `obelics/configs/config_filter_web_documents.yaml` and `build_obelics` of huggingface/OBELICS.
"""

from __future__ import annotations

from pydantic import Field

from pipeline.core.settings import Settings
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.settings import Normalization, UnitSettings
from pipeline.sources.settings import Rights


class ImageRules(Settings):
    """Which images stay. A size that nobody knows removes nothing."""

    formats: list[str] = Field(default=["jpeg", "jpg", "png", "webp"], description="of the files that are in archives")
    minimum_pixels: int = Field(default=150, ge=0, description="least width and height of the file, and as shown")
    maximum_pixels: int = Field(default=20_000, ge=1, description="largest width and height of the file, and as shown")
    maximum_aspect_ratio: float = Field(default=2.0, ge=1, description="of the longer side to the shorter one")
    url_words: list[str] = Field(
        default=["logo", "button", "icon", "plugin", "widget", "porn", "xxx", "sex"],
        description="an image with one of them in its URL is removed",
    )
    needs_file: bool = Field(default=False, description="remove images whose file is not in the archives of the unit")
    maximum_occurrences: int = Field(default=10, ge=1, description="an image that is in the set more often is removed")


class TextRules(Settings):
    """Which texts stay: limits of shares between 0 and 1; none switches a rule off."""

    minimum_words: int = Field(ge=0)
    maximum_words: int = Field(ge=1)
    character_ngram: int = Field(default=10, ge=1, description="characters of an n-gram for `character_repetition`")
    character_repetition: float | None = Field(default=0.1, description="largest share of the most frequent n-grams")
    word_ngram: int = Field(default=5, ge=1, description="words of an n-gram for `word_repetition`")
    word_repetition: float | None = Field(description="largest share of n-grams that occur more than once")
    special_characters: float | None = Field(description="largest share of characters that are no letters")
    stop_words: float | None = Field(description="least share of stop words")
    flagged_words: float | None = Field(default=0.01, description="largest share of words of the list flagged_words")
    punctuation: float | None = Field(description="least share of , ; : ? ! and . among words and these")
    punctuation_from_words: int = Field(default=0, ge=0, description="shorter texts need no punctuation")
    common_words: float | None = Field(description="least share of words of the list common_words")


class WordLists(Settings):
    """Files of words of a language, one per line. Without a list its rules are not applied."""

    stop_words: str | None = Field(default=None, description="default: the function words of the preset `genre`")
    flagged_words: str | None = None
    common_words: str | None = None


class InterleavedRules(Settings):
    """The rules of one set of interleaved documents."""

    images: ImageRules = ImageRules()
    paragraphs: TextRules = TextRules(
        minimum_words=4,
        maximum_words=1000,
        word_repetition=0.1,
        special_characters=0.3,
        stop_words=0.3,
        punctuation=0.001,
        punctuation_from_words=12,
        common_words=0.8,
    )
    documents: TextRules = TextRules(
        minimum_words=10,
        maximum_words=2000,
        word_repetition=0.2,
        special_characters=0.275,
        stop_words=0.35,
        punctuation=0.03,
        common_words=0.9,
    )
    minimum_images: int = Field(default=1, ge=0, description="of a document")
    maximum_images: int = Field(default=30, ge=1, description="of a document")
    language_score: float = Field(default=0.8, ge=0, le=1, description="least probability of a document's language")
    spam_words: float = Field(default=0.12, ge=0, le=1, description="a paragraph with this share of them is removed")


class Interleaved(Settings):
    """A set of interleaved documents: its sources, which are WARC archives or HTML files, and its rules."""

    sources: list[str] = Field(min_length=1, description="names of sources; their corpora read the same pages as text")
    languages: list[str] = Field(default=["nl", "en"], min_length=1, description="ISO 639-1; others are removed")
    word_lists: dict[str, WordLists] = Field(default={}, description="by language")
    opt_out_images: str | None = Field(default=None, description="a file of image URLs to leave out, one per line")
    rules: InterleavedRules = InterleavedRules()
    broken_share: float = Field(default=0.05, ge=0, le=1, description="largest share of pages that cannot be read")
    normalization: Normalization = Normalization()
    personal_data: PersonalData = PersonalData()


OPT_OUT_LIST = "opt_out"  # kind of the list that a source names


class ListedFile(Settings):
    """A list that a step reads, by what it is of and by its content."""

    kind: str = Field(description="stop_words, flagged_words, common_words, opt_out_images or opt_out")
    language: str = ""
    sha256: str


class ExtractSettings(UnitSettings):
    """Settings of interleaved.extract."""

    languages: list[str]
    rules: InterleavedRules
    lists: list[ListedFile] = Field(default=[], description="the files of `lists`, in their order")
    pillow: str = Field(default="", description="the version of Pillow, which reads formats and sizes of images")
    page_reservations: bool = True
    allowed_licenses: list[str] = Field(default=[], description="for images that state a license; empty allows all")
    normalization: Normalization = Normalization()
    personal_data: PersonalData = PersonalData()


class InterleavedSource(Settings):
    """A source as the card of the set names it."""

    name: str
    license: str
    rights: Rights
    damaged_share: float = 0.0


class AssembleSettings(Settings):
    """Settings of interleaved.assemble."""

    run: str
    name: str
    rules: InterleavedRules
    languages: list[str]
    lists: list[ListedFile] = []
    sources: list[InterleavedSource]
    provider: str | None = None
    contact: str | None = None
