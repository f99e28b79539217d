"""Settings of the evaluation: suites of lm-eval tasks, and the checkpoints that answer them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from pipeline.core.errors import InputError, suggest_name
from pipeline.core.job_command_lines import substitute_data_folder
from pipeline.core.settings import Settings
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.rules.settings import Harmful
from pipeline.tokens.settings import MINIMUM_CHARACTERS

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
TEXTS = "texts"  # the suite of evaluation.texts


class Text(Settings):
    """Texts whose bits per byte are measured, which compares models with any tokenizer and corpus."""

    language: str = Field(description="the language of the texts")
    path: str = Field(description="JSON lines, each with `text`, and with `genre` for scores by genre")


class Suite(Settings):
    """A set of tasks: a folder of task files, or tasks that lm-eval ships."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", description="the suite's name in results and reports")
    language: str = Field(description="of the tasks that name none of their own, as metadata: {language: nl}")
    folder: str | None = Field(default=None, description="every *.yaml in it is a task")
    tasks: list[str] = Field(default=[], description="names of tasks, groups or tags that lm-eval ships")
    texts: dict[str, Text] = Field(default={}, description="of the section evaluation.texts")
    data: str | None = Field(
        default=None,
        description="the folder of the tasks' data files; for shipped tasks a mirror NAMESPACE/DATASET/README.md, …",
    )
    limit: int | None = Field(default=None, ge=1, description="evaluate this many examples, drawn by evaluation.seed")

    @model_validator(mode="after")
    def _check_kind(self) -> Suite:
        if self.texts and self.name != TEXTS:
            raise ValueError(f"the suite {self.name!r} has texts: write them as evaluation.texts")
        if not self.texts and (self.folder is None) == (not self.tasks):
            raise ValueError(
                f"the suite {self.name!r} needs either folder (of task files) or tasks (that lm-eval ships)"
            )
        if self.tasks and self.data is None:
            raise ValueError(
                f"the suite {self.name!r} names shipped tasks: give data, the folder that mirrors their data"
            )
        return self


UNTRAINED = "untrained"  # a model of the run before its first step
ADOPTED = "adopted"  # the same of one that goes on from a model that was trained elsewhere
KnownSuite = Literal[
    "dutch",
    "english",
    "dutch_open",
    "english_open",
    "reasoning_open",
    "safety",
    "translation",
    "use_cases",
    "dutch_shipped",
    "english_shipped",
    "euroeval_dutch",
    "euroeval_english",
    "olmes_core",
    "ntrex",
    "code",
    "instructions",
    "long_context",
]
_PIQA = ("parallel_cloze", "nonparallel_cloze", "parallel_generation", "nonparallel_generation")
KNOWN_SUITES: dict[KnownSuite, Suite] = {
    "dutch": Suite(name="dutch", language="nl", folder="config/tasks/dutch"),
    "english": Suite(name="english", language="en", folder="config/tasks/english"),
    "dutch_open": Suite(
        name="dutch_open", language="nl", folder="config/tasks/dutch_open", data="{data}/eval", limit=1000
    ),
    "english_open": Suite(
        name="english_open", language="en", folder="config/tasks/english_open", data="{data}/eval", limit=1000
    ),
    "reasoning_open": Suite(
        name="reasoning_open", language="en", folder="config/tasks/reasoning_open", data="{data}/eval", limit=200
    ),
    "safety": Suite(name="safety", language="nl, en", folder="config/tasks/safety"),
    "translation": Suite(
        name="translation", language="nl, en", folder="config/tasks/translation", data="{data}/eval", limit=200
    ),
    "use_cases": Suite(name="use_cases", language="nl, en", folder="config/tasks/use_cases"),
    "dutch_shipped": Suite(
        name="dutch_shipped",
        language="nl",
        tasks=[
            *("arc_nl", "hellaswag_nl", "m_mmlu_nl", "truthfulqa_nl_mc1", "truthfulqa_nl_mc2", "belebele_nld_Latn"),
            *("blimp_nl", "multiblimp_nld", "global_mmlu_full_nl", "include_base_44_dutch"),
            *(f"global_piqa_{kind}_nld_latn" for kind in _PIQA),
            "lambada_openai_mt_stablelm_nl",
        ],
        data="{data}/mirror",
        limit=1000,
    ),
    "english_shipped": Suite(
        name="english_shipped",
        language="en",
        tasks=[
            *("arc_challenge", "hellaswag", "mmlu", "truthfulqa_mc1", "truthfulqa_mc2", "belebele_eng_Latn"),
            *("blimp", "multiblimp_eng", "global_mmlu_full_en"),
            *(f"global_piqa_{kind}_eng_latn" for kind in _PIQA),
            *("lambada_openai", "lambada_openai_mt_stablelm_en"),
        ],
        data="{data}/mirror",
        limit=1000,
    ),
    "euroeval_dutch": Suite(
        name="euroeval_dutch", language="nl", folder="config/tasks/euroeval_dutch", data="{data}/mirror"
    ),
    "euroeval_english": Suite(
        name="euroeval_english", language="en", folder="config/tasks/euroeval_english", data="{data}/mirror"
    ),
    "olmes_core": Suite(
        name="olmes_core", language="en", folder="config/tasks/olmes_core", data="{data}/mirror", limit=1000
    ),
    "ntrex": Suite(name="ntrex", language="nl, en", folder="config/tasks/ntrex", data="{data}/mirror", limit=200),
    "code": Suite(name="code", language="en", folder="config/tasks/code", data="{data}/mirror"),
    "instructions": Suite(name="instructions", language="en", folder="config/tasks/instructions", data="{data}/mirror"),
    "long_context": Suite(name="long_context", language="en", folder="config/tasks/long_context"),
}


class Samples(Settings):
    """The search for a model's own text in its training documents."""

    tokens: int = Field(default=100, ge=1, description="that the model writes after each prompt, at most")
    minimum_characters: int = Field(
        default=MINIMUM_CHARACTERS, ge=1, description="shorter parts do not count as copied from a training document"
    )
    held_out: int = Field(default=50, ge=1, description="validation documents that are searched for comparison")


class Memorization(Settings):
    """The amount of text that a model continues, for comparison with its training documents."""

    prompts: int = Field(
        default=200, ge=1, description="beginnings of training documents, and as many of held-out ones"
    )
    prompt_tokens: int = Field(default=50, ge=1, description="of each beginning, behind begin-of-text")
    continuation_tokens: int = Field(default=50, ge=1, description="that the model writes after each")

    @property
    def minimum_tokens(self) -> int:
        """The least number of tokens of a document and of the model's sequence, with begin-of-text."""
        return 1 + self.prompt_tokens + self.continuation_tokens


class MemorizationSettings(Memorization):
    """The same with what text is searched for."""

    seed: int = Field(default=42, ge=0, description="draws the documents")
    batch_size: int = Field(default=16, ge=1)
    harmful: Harmful = Harmful()
    harmful_sha256: list[str] = Field(default=[], description="of the files of its lists and classifiers")
    personal_data: PersonalData = PersonalData()


class SamplesSettings(Samples):
    """Settings of the step `evaluate samples`."""

    model: str
    memorization: MemorizationSettings | None = None


class Evaluation(Settings):
    """The section `evaluation` of a run."""

    suites: list[KnownSuite | Suite] = Field(default=["dutch", "english"])
    texts: dict[Name, Text] = Field(default={}, description="texts whose bits per byte are measured, by name")
    checkpoints: Literal["all", "final"] = Field(default="all", description="evaluate every milestone, or the last one")
    batch_size: int = Field(default=16, ge=1, description="requests that are computed together")
    seed: int = Field(
        default=42,
        ge=0,
        description="draws the examples; it is not the run's seed, so that models of other seeds get the same items",
    )
    deterministic: bool = Field(
        default=True,
        exclude_if=lambda on: bool(on),  # what was evaluated with it stays
        description="no kernels but those that give the same bits every time; on a GPU that is slower",
    )
    execute_code: bool = Field(
        default=False,
        exclude_if=lambda on: not on,
        description="execute the programs that models write, in a sandbox: the suite `code` needs it",
    )
    untrained: bool = Field(
        default=True, description="compare each model with what it was before its first step: untrained, or pretrained"
    )
    baselines: dict[Name, str] = Field(
        default={}, description="other models to compare with: folders in the layout of Hugging Face, by name"
    )
    samples: Samples = Samples()
    memorization: Memorization | None = Field(
        default=None, description="count what models write that is memorized, harmful or personal data"
    )

    @model_validator(mode="after")
    def _check_names(self) -> Evaluation:
        names = [suite.name if isinstance(suite, Suite) else suite for suite in self.suites]
        if TEXTS in names:
            raise ValueError(f"suites: {TEXTS!r} are what evaluation.texts names; choose another name")
        if len(set(names)) < len(names):
            raise ValueError(f"suites: {max(names, key=names.count)!r} occurs twice; give each suite its own name")
        if "code" in self.suites and not self.execute_code:
            raise ValueError(
                "suites: 'code' executes the programs that models write; write `execute_code: true`, which does it in "
                "a sandbox, or leave the suite out"
            )
        if taken := [name for name in self.baselines if name.partition("-")[0] in (UNTRAINED, ADOPTED)]:
            raise ValueError(f"baselines: {taken[0]!r} is a model before its first step; choose another name")
        return self

    @property
    def suite_names(self) -> list[str]:
        """Return the names of the suites."""
        return [suite.name if isinstance(suite, Suite) else suite for suite in self.suites] + [TEXTS] * bool(self.texts)

    def resolve_suites(self, data: str | None, names: Sequence[str] | None = None) -> list[Suite]:
        """Return suites, names replaced by their meaning and `{data}` by the run's data folder.

        Args:
            names: of the evaluation's suites or known ones; None for all that are evaluated.

        Raises:
            InputError: when a suite needs the data folder and none is given, or has no such name.
        """
        known: dict[str, Suite] = {**KNOWN_SUITES} | {s.name: s for s in self.suites if isinstance(s, Suite)}
        suites = []
        for name in self.suite_names if names is None else names:
            if name == TEXTS and self.texts:
                suites.append(Suite(name=TEXTS, language="", texts=self._resolve_texts(data)))
                continue
            if name not in known:
                raise InputError(f"there is no suite {name!r}: {suggest_name(name, known)}")
            suite = known[name]
            if suite.data is not None:
                placed = substitute_data_folder(f"evaluation.suites: {suite.name}", suite.data, data)
                suite = suite.model_copy(update={"data": placed})
            suites.append(suite)
        return suites

    def _resolve_texts(self, data: str | None) -> dict[str, Text]:
        return {
            name: text.model_copy(update={"path": substitute_data_folder(f"evaluation.texts.{name}", text.path, data)})
            for name, text in self.texts.items()
        }


class DifferencesSettings(Settings):
    """Settings of the step `evaluate differences`."""

    seeds: list[list[str]] = Field(default=[], description="models that differ in nothing but their seed, by groups")


class TextSettings(Settings):
    """A text as a step knows it: its language, and the name of its file."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)

    language: str
    path: str

    @field_validator("path")
    @classmethod
    def _keep_file_name(cls, path: str) -> str:
        return PurePath(path).name


class SuiteSettings(Settings):
    """The part of a suite that decides its results; the location of its data is in the step's inputs."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)

    name: str
    language: str
    folder: str | None = None
    tasks: list[str] = Field(default=[])
    texts: dict[str, TextSettings] = Field(default={})
    limit: int | None = None


class RequestSettings(Settings):
    """The requests to a model."""

    suites: list[SuiteSettings]
    batch_size: int = Field(default=16, ge=1)
    seed: int = Field(default=42, ge=0)
    deterministic: bool = Field(default=True, exclude_if=lambda on: bool(on))
    execute_code: bool = Field(default=False, exclude_if=lambda on: not on)


class SuitesSettings(RequestSettings):
    """Settings of the step `evaluate suites`."""

    model: str
    step: int = Field(ge=0)


class BaselineSettings(RequestSettings):
    """Settings of the step `evaluate baselines`; with a seed the model is one that was not trained."""

    name: str
    untrained_seed: int | None = None
