"""The tokenizers of a run side by side: how well each fits, and what it costs."""

from __future__ import annotations

from pipeline.report.read import Artefact, Json, Material


def compared(material: Material) -> list[Json]:
    """Return a row for each tokenizer, by name.

    Its corpus in tokens is estimated from the bytes per token of each language, with two more for the ends of each
    document, and counted where a token set has both. The embedding and output are those of the models of the run, by
    their width.
    """
    rows = []
    for fertility in sorted(material.fertility, key=lambda artefact: artefact.name):
        record = next(iter(material.records_of("tokenizer.train", tokenizer=fertility.name)), None)
        content, settings = fertility.content, record.content["settings"] if record else {}
        ratios = [one["bytes_per_token"] for one in content["languages"].values() if one["bytes_per_token"]]
        rows.append(
            {
                "name": fertility.name,
                "link": fertility.link,
                "settings": settings,
                "sample": _sample(record),
                "record": record,
                "taken_over": bool(record and record.content.get("taken_over_from")),
                **{key: content.get(key) for key in ("vocabulary_size", "renyi_efficiency", "parallel")},
                "languages": sorted(content["languages"].items()),
                "spread": max(ratios) / min(ratios) if len(ratios) > 1 else None,
                **_corpus_tokens(material, fertility, record),
                "embeddings": _embeddings(material, content["vocabulary_size"]),
            }
        )
    return rows


def _sample(record: Artefact | None) -> Json | None:
    """Return what a tokenizer was trained on; None where the record does not tell."""
    counts = record.content.get("counts") or {} if record else {}
    return (
        {**counts["sample"], "documents": counts["documents"], "bytes": counts["bytes"]} if "sample" in counts else None
    )


def _corpus_tokens(material: Material, fertility: Artefact, record: Artefact | None) -> Json:
    """Return the tokens of the tokenizer's corpus as estimated and as counted; None where that is not known."""
    inputs = record.content["inputs"] if record else []
    read = {entry["path"].split("/")[1] for entry in inputs if entry["name"] == "documents"}
    languages: Json = next(
        (one.content["languages"] for one in material.statistics if {one.content["corpus"]} == read), {}
    )
    ratios = {name: one["bytes_per_token"] for name, one in fertility.content["languages"].items()}
    known = bool(languages) and all(ratios.get(name) for name in languages)
    each = [part["bytes"] / ratios[name] + 2 * part["documents"] for name, part in languages.items() if known]
    made = [
        index.content
        for index in material.indexes
        if index.content.get("tokenizer_sha256") == fertility.content["tokenizer_sha256"]
        and sum(part["documents"] for part in languages.values())
        == sum(index.content[split]["documents"] for split in ("train", "validation"))
    ]
    counted = sum(made[0][split]["tokens"] for split in ("train", "validation")) if made else None
    return {"estimated_tokens": round(sum(each)) if known else None, "counted_tokens": counted}


def _embeddings(material: Material, vocabulary_size: int) -> list[tuple[str, int]]:
    """Return the parameters of embedding and output for each shape of the run's models, with the models' names."""
    shapes: dict[tuple[int, bool], dict[str, None]] = {}
    for segment in material.records_of("pretrain.segment"):
        architecture = segment.content["settings"].get("architecture", {})
        if "width" in architecture:
            shape = (architecture["width"], architecture.get("tie_embeddings", False))
            shapes.setdefault(shape, {})[segment.content["instance"]["model"]] = None
    return [
        (", ".join(models), vocabulary_size * width * (1 if tied else 2)) for (width, tied), models in shapes.items()
    ]
