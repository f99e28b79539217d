"""The step `report remains`: that the tokens hold nothing of the opt-out lists, and where else on disk it still is.

Searched are this run's token shards, and below the results folder the corpora, tokens, checkpoints, models and archives
of every run, this one's leftovers among them, and their private texts.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.corpus.copies.signed import Keys
from pipeline.opt_out.archives import search_archive
from pipeline.opt_out.entries import contains
from pipeline.opt_out.others import archives, runs
from pipeline.opt_out.places import Place, RunSearch, Wanted, ids_in_shard
from pipeline.opt_out.remains_settings import RemainsSettings
from pipeline.opt_out.search import Reserved, hashed, joined, listed, removed_copies


def _of(corpus: str, paths: list[Path]) -> list[Path]:
    """Return those of the files corpus/NAME/FOLDER/FILE that are of one corpus."""
    return [path for path in paths if path.parts[-3] == corpus]


def _search_shards(shards: list[Path], ids: Keys) -> int:
    """Return how many documents the shards hold.

    Raises:
        InputError: one of the ids is among them.
    """
    documents = 0
    for path in shards:
        for found in ids_in_shard(path):
            documents += len(found)
            if contains(ids, found).any():
                raise InputError(f"{path} holds a document that is to be forgotten: delete it and start again")
    return documents


def run(
    settings: RemainsSettings,
    *,
    manifests: list[Path],
    reserved: list[Path],
    removed: list[Path],
    shards: list[Path],
    remains: Path,
) -> dict[str, Any]:
    """Write how many documents of each token set were searched, and every place that still holds what is forgotten.

    What cannot be searched is a suspicion: tokens that are gone, files that are damaged, models in archives.

    Args:
        manifests: of the sources that have an opt-out list.
        reserved: the signatures of what is reserved, of each corpus.
        removed: what the deduplication removed, of each corpus.
        shards: of this run's token sets.

    Raises:
        InputError: a shard of this run holds what is to be forgotten.
    """
    signed = {name: Reserved(_of(name, reserved), section) for name, section in settings.corpora.items()}
    ids = {
        name: joined([signed[name].ids, hashed(removed_copies(_of(name, removed))["id"])]) for name in settings.corpora
    }
    tokens = {}
    for name, corpus in settings.tokens.items():
        documents = _search_shards([path for path in shards if path.parts[-3] == name], ids[corpus])
        tokens[name] = {"documents": documents, "found": 0}
    described = [json.loads(path.read_text(encoding="utf-8")) for path in manifests]
    wanted = Wanted(
        ids=joined(list(ids.values())),
        domains={manifest["source"]["name"]: set(listed(manifest)["domains"]) for manifest in described},
        reserved=[(section, signed[name]) for name, section in settings.corpora.items()],
    )
    results = remains.absolute().parents[2]
    places: list[Place] = []
    found_ids = [wanted.ids]
    names = [folder.name for folder in runs(results)]
    for name in names:
        own = name == settings.run
        proven, corpora = (settings.tokens, settings.corpora) if own else ((), ())
        search = RunSearch(results, name, wanted, own=own, proven=proven, proven_corpora=corpora)
        places += search.places()
        found_ids.append(search.ids)
    everything = joined(found_ids)
    for path in archives(results):
        place = search_archive(path, path.relative_to(results).as_posix(), wanted, everything)
        places += [place] if place else []
    content = {
        "tokens": tokens,
        "runs": names,
        "archives": sum(1 for _ in archives(results)),
        "places": [asdict(place) for place in places],
    }
    remains.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    certain = sum(place.certain for place in places)
    print(f"{certain} places still hold what is forgotten, {len(places) - certain} may", flush=True)
    return {"places": certain, "suspected": len(places) - certain, "runs": len(names)}
