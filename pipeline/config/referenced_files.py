"""The files that a configuration names outside of its sources: models, word lists, seeds of classifiers, evidence."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.sections import Sections
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_command_lines import format_search_folder, substitute_data_folder

ONNX_FILES = ("model.onnx", "tokenizer.json")  # the files of a folder of a classifier
URL_LIST_NAMES = ("domains", "urls")  # the files of a folder of UT1


class NamedFiles(Sections):
    """The sections of a configuration, with the files that they name, most of which are checked to exist."""

    def resolve_data_path(self, what: str, path: str) -> str:
        """Return the path of something with the folder of the data in it."""
        return substitute_data_folder(what, path, self.data)

    def parallel_files(self, tokenizer: str) -> list[str]:
        """Return the files of the sentences that a tokenizer's parity is measured on, in the order of the languages."""
        files = sorted(self.tokenizer[tokenizer].parallel.items())
        return [self.resolve_data_path(f"tokenizer.{tokenizer}.parallel", path) for _, path in files]

    def baseline_model_files(self, baseline: str) -> list[str]:
        """Return the files of a baseline that a folder holds.

        Raises:
            InputError: it is no folder of a model in the layout of Hugging Face, or its weights are no safetensors.
        """
        return self._model_files(f"evaluation.baselines.{baseline}", self.evaluation.baselines[baseline])

    def baseline_file_sizes(self, baseline: str) -> int:
        """Return how large the files of a baseline are."""
        return sum(Path(file).stat().st_size for file in self.baseline_model_files(baseline))

    def pretrained_files(self, model: str) -> list[str]:
        """Return the files of the model that a training begins with.

        Raises:
            InputError: as of a baseline, or the model is of another shape than the configuration's.
        """
        section, what = self.models[model], f"models.{model}.pretrained"
        if section.pretrained is None:
            raise ValueError(f"models.{model} begins with weights that are drawn")
        from pipeline.pretrain.adopt import (
            check_matches_architecture as check_matches_architecture,
        )  # here, for it loads torch

        files = self._model_files(what, section.pretrained.folder)
        try:
            check_matches_architecture(Path(files[0]).parent, section.architecture)
        except InputError as error:
            raise InputError(f"{what}: {error}") from None
        return files

    def list_rope_changes(self, model: str) -> list[str]:
        """Return in what a model's positions turn otherwise than in the one that its training begins with.

        Raises:
            InputError: as of `pretrained_files`.
        """
        if self.models[model].pretrained is None:
            return []
        from pipeline.pretrain.adopt import list_rope_differences

        return list_rope_differences(Path(self.pretrained_files(model)[0]).parent, self.models[model].architecture)

    def _model_files(self, what: str, written: str) -> list[str]:
        folder = Path(self.resolve_data_path(what, written))
        files = [*folder.glob("[!.]*")] if folder.is_dir() else []
        names = [file.name for file in files]
        if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
            raise InputError(
                f"{what}: {folder}{format_search_folder(folder)} needs config.json, a tokenizer and *.safetensors; "
                "name a folder of a model in the layout of Hugging Face"
            )
        return sorted(str(file) for file in files if file.is_file())

    def harmful_content_files(self, corpus: str) -> list[Path]:
        """Return the files of a corpus's word lists and classifiers, in their order.

        Raises:
            InputError: a file is missing.
        """
        paths = []
        for entry in self.corpus[corpus].harmful.lists_and_classifiers():
            path = Path(entry.path.replace("{data}", self.data or "{data}"))
            paths.append(_existing_file(f"corpus.{corpus}.harmful", path, f", which {entry.name} names"))
        return paths

    def harmful_content_files_for_model(self, model: str) -> list[Path]:
        """Return the same of the corpus that a model is trained on, where what it writes is looked at."""
        corpus = self.tokens[self.models[model].tokens].corpus
        return self.harmful_content_files(corpus) if self.evaluation.memorization else []

    def block_and_allow_list_files(self, corpus: str, source: str) -> tuple[list[Path], list[Path]]:
        """Return the files of the block and of the allow lists of a source in a corpus, those of the corpus first.

        Raises:
            InputError: a file is missing, or a folder has neither `domains` nor `urls`.
        """
        block_and_allow_files: tuple[list[Path], list[Path]] = ([], [])
        for what, lists in ((f"corpus.{corpus}", self.corpus[corpus]), (f"source {source}", self.source(source))):
            for kind, files in zip(("block", "allow"), block_and_allow_files, strict=True):
                for written in getattr(lists.url_lists, kind):
                    path = Path(self.resolve_data_path(f"{what}: url_lists", written))
                    listed = [path / name for name in URL_LIST_NAMES] if path.is_dir() else [path]
                    there = [file for file in listed if file.is_file()]
                    if not there:
                        raise InputError(
                            f"{what}: url_lists.{kind} names {path}{format_search_folder(path)}, which is neither "
                            "a file nor a folder with a file `domains` or `urls`: correct its path"
                        )
                    files.extend(there)
        return block_and_allow_files

    def quality_training_files(self, corpus: str) -> list[Path]:
        """Return the files that a corpus's classifiers are trained on, by language, the good ones first.

        Raises:
            InputError: a file is missing.
        """
        files = []
        for language, seeds in sorted(self.corpus[corpus].quality.items()):
            for seed_set in [*seeds.good, *seeds.bad]:
                key = f"corpus.{corpus}.quality.{language}"
                files.append(_existing_file(key, Path(self.resolve_data_path(key, seed_set.path))))
        return files

    def classifier_files(self, corpus: str, name: str) -> list[Path]:
        """Return the files of a classifier of a corpus: one of fastText, or the model, the tokenizer and its labels.

        Raises:
            InputError: a file is missing.
        """
        section, key = self.corpus[corpus].classifiers[name], f"corpus.{corpus}.classifiers.{name}"
        path = Path(self.resolve_data_path(key, section.path))
        if not section.is_fasttext and not path.is_dir():
            raise InputError(
                f"{key}: {path}{format_search_folder(path)} is no folder: name a .bin or .ftz of fastText, or a folder "
                "with model.onnx and tokenizer.json"
            )
        files = [
            _existing_file(key, file) for file in ([path] if section.is_fasttext else map(path.joinpath, ONNX_FILES))
        ]
        labels = path / "config.json"
        return [*files, labels] if labels.is_file() else files

    def interleaved_lists(self, name: str) -> list[tuple[str, str, Path]]:
        """Return kind, language (empty for opt_out_images) and file of each list of a set of interleaved documents.

        Raises:
            InputError: a file is missing.
        """
        section, key = self.interleaved[name], f"interleaved.{name}"
        named = [
            (f"{key}.word_lists.{language}.{kind}", kind, language, path)
            for language, lists in sorted(section.word_lists.items())
            for kind, path in lists.model_dump().items()
        ]
        named.append((f"{key}.opt_out_images", "opt_out_images", "", section.opt_out_images))
        return [
            (kind, language, _existing_file(name, Path(self.resolve_data_path(name, path))))
            for name, kind, language, path in named
            if path
        ]

    def license_evidence_hashes(self) -> dict[str, str]:
        """Return the sha256 of each file that shows the license of a source.

        Raises:
            InputError: there is no such source, or no such file.
        """
        hashes = {}
        for source, name in sorted(self.disclosure.license_evidence.items()):
            path = Path(self.resolve_data_path("disclosure.license_evidence", name))
            if source not in [known.name for known in self.sources]:
                raise InputError(f"disclosure.license_evidence: there is no source {source!r}")
            hashes[source] = hash_file(_existing_file(f"disclosure.license_evidence.{source}", path))
        return hashes


def _existing_file(key: str, path: Path, which: str = "") -> Path:
    """Return the path of a file that a key names; `which` is added to the sentence where there is none.

    Raises:
        InputError: it does not exist.
    """
    if not path.is_file():
        raise InputError(
            f"{key}: there is no file {path}{format_search_folder(path)}{which}: correct its path, or add it"
        )
    return path
