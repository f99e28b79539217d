"""The models and texts of a run as a bill of materials in CycloneDX 1.7, with the fields of SPDX's AI profile.

It is written as JSON, because cyclonedx-python-lib 11 has no model cards; the tests validate it with that library.
"""

from __future__ import annotations

import json
import uuid
from itertools import chain
from typing import Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from pipeline import layout
from pipeline.core.markup import safe_url
from pipeline.report.papers.facts import ModelFacts, SourceFacts, format_kilowatt_hours
from pipeline.report.papers.spdx import describe_training, hash_weights, list_training_corpora
from pipeline.report.run_reader import Json, RunReader
from pipeline.report.settings import ProviderStatements

VERSION = "1.7"
SCHEMA = f"http://cyclonedx.org/schema/bom-{VERSION}.schema.json"
NAMESPACE = uuid.UUID("8f0e7f5a-6f0c-5c0e-9d53-3a4f3f9c1d11")  # of serial numbers, which follow from the content
TAXONOMY = "genai:aibom:modelcard:"
"""Prefix of the properties of a model card in OWASP's AIBOM generator."""
SHAPE_PROPERTIES = {
    "blockCount": "layers",
    "embeddingLength": "width",
    "attentionHeadCount": "heads",
    "attentionHeadCountKV": "key_value_heads",
    "feedForwardLength": "feed_forward_width",
}
"""By the name of the property: the key of the architecture."""
RISKS = {
    "bias in the texts": "bias_measures",
    "illegal content in the texts": "illegal_content",
    "reservations of rights": "reservations",
}
"""By an ethical consideration: the provider's statement of the measures."""


def _without_empty(content: Json) -> Json:
    return {key: value for key, value in content.items() if value not in (None, "", [], {})}


def _properties(values: dict[str, Any], prefix: str = "") -> list[Json]:
    return [
        {"name": f"{prefix}{name}", "value": str(value)} for name, value in values.items() if value not in (None, "")
    ]


def _licenses(expressions: list[str]) -> list[Json]:
    """Return licenses as an expression of SPDX where they are one, and else by their words."""
    if not expressions:
        return []
    try:
        known = [str(canonicalize_license_expression(expression)) for expression in expressions]
    except InvalidLicenseExpression:
        return [{"license": {"name": expression}} for expression in expressions]
    each = [f"({expression})" if " OR " in expression and len(known) > 1 else expression for expression in known]
    return [{"expression": " AND ".join(each)}]


def _external_references(**urls: str | None) -> list[Json]:
    return [{"type": kind.replace("_", "-"), "url": url} for kind, url in urls.items() if url]


def _source_component(source: SourceFacts) -> Json:
    category = source.category if source.category != "other" else ""  # where nothing says more
    stated = {"language": source.language, "legal basis": source.basis, "category": category}
    data = _without_empty(
        {
            "type": "dataset",
            "name": source.name,
            "contents": {"url": url} if (url := safe_url(source.address)) else None,
            "description": "; ".join(f"{title}: {text}" for title, text in stated.items() if text),
            "governance": {"owners": [{"organization": {"name": source.holder}}]} if source.holder else None,
        }
    )
    sizes = {"bytes": source.bytes_read, "documents": source.documents_used, "tokens": source.tokens}
    return _without_empty(
        {
            "type": "data",
            "bom-ref": f"source/{source.name}",
            "name": source.name,
            "version": source.version,
            "licenses": _licenses(source.own_licenses or [source.license] * bool(source.license)),
            "data": [data],
            "properties": _properties(sizes, "polder:"),
        }
    )


def _corpus_component(corpus: Json) -> Json:
    totals = corpus["totals"]
    steps = [f"{stage['stage']}: {stage['in']} documents in, {stage['kept']} kept" for stage in totals["stages"]]
    data = _without_empty({"type": "dataset", "name": corpus["name"], "description": "; ".join(steps)})
    return {
        "type": "data",
        "bom-ref": layout.CORPUS.relative_path(corpus=corpus["name"]),
        "name": f"corpus {corpus['name']}",
        "data": [data],
        "properties": _properties({"bytes": totals["bytes_out"], "documents": totals["documents_out"]}, "polder:"),
    }


def _classifier_components(corpus: Json) -> list[Json]:
    """Return the pretrained classifiers of the documents of a corpus."""
    return [
        _without_empty(
            {
                "type": "machine-learning-model",
                "bom-ref": f"classifier/{corpus['name']}/{name}",
                "name": one["files"][0]["name"],
                "licenses": _licenses([one["license"]]),
                "externalReferences": _external_references(distribution=safe_url(one["url"])),
                "components": [
                    {
                        "type": "file",
                        "bom-ref": f"classifier/{corpus['name']}/{name}/{file['name']}",
                        "name": file["name"],
                        "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
                    }
                    for file in one["files"]
                ],
            }
        )
        for name, one in corpus["classifiers"]
    ]


def _energy(model: ModelFacts, provider: str) -> Json | None:
    """Return the energy of the training; the schema wants a provider of electricity, of which nothing is known."""
    if not model.energy.is_known:
        return None
    measure = {"value": float(format_kilowatt_hours(model.energy.joules)), "unit": "kWh"}
    electricity = {"organization": {"name": f"electricity of {provider}"}, "energySource": "unknown"}
    return {
        "energyConsumptions": [
            {
                "activity": "training",
                "energyProviders": [{**electricity, "energyProvided": measure}],
                "activityEnergyCost": measure,
                "properties": _energy_properties(model),
            }
        ]
    }


def _energy_properties(model: ModelFacts) -> list[Json]:
    """Return the label of an energy and the bounds of its 95 % interval in kWh; nothing if it is not known."""
    if not model.energy.is_known:
        return []
    low, high = (format_kilowatt_hours(bound) for bound in (model.energy.low_joules, model.energy.high_joules))
    return _properties({"energyLabel": model.energy.label, "energyLow": low, "energyHigh": high}, "polder:")


def _metrics(model: ModelFacts) -> list[Json]:
    loss = [] if model.validation_loss is None else [("validation loss, nats per token", model.validation_loss)]
    scores = [(f"{task['task']} ({task['language']}), {task['metric']}", task["value"]) for task in model.scores]
    return [{"type": name, "value": str(value)} for name, value in (*loss, *scores) if value is not None]


def _model_card(model: ModelFacts, corpora: list[Json], energy: Json | None, stated: ProviderStatements) -> Json:
    shape = model.architecture
    measures = {name: stated.text(key) for name, key in RISKS.items()}
    considerations = {
        "users": [text for text in [stated.text("systems")] if text],
        "useCases": [text for text in [stated.text("intended_use")] if text],
        "technicalLimitations": [text for text in [stated.text("limitations")] if text],
        "ethicalConsiderations": [
            {"name": name, "mitigationStrategy": text} for name, text in measures.items() if text
        ],
        "environmentalConsiderations": energy,
    }
    described = [f"{key} {shape[key]}" for key in SHAPE_PROPERTIES.values() if shape.get(key)]
    texts = [{"format": "text"}] if model.vocabulary_size else []  # the tokens are of a tokenizer of text
    parameters = {
        "architectureFamily": shape.get("preset"),
        "modelArchitecture": ", ".join(described),
        "datasets": [{"ref": corpus["bom-ref"]} for corpus in corpora],
        "inputs": texts,
        "outputs": texts,
    }
    properties = {name: shape.get(key) for name, key in SHAPE_PROPERTIES.items()}
    properties |= {"vocabSize": model.vocabulary_size, "contextLength": model.training.get("sequence_length")}
    return _without_empty(
        {
            "modelParameters": _without_empty(parameters),
            "quantitativeAnalysis": _without_empty({"performanceMetrics": _metrics(model)}),
            "considerations": _without_empty(considerations),
            "properties": _properties(properties, TAXONOMY),
        }
    )


def _model_component(
    reader: RunReader, page: Json, model: ModelFacts, corpora: list[Json], stated: ProviderStatements
) -> Json:
    """Return a model; its properties are the fields of SPDX 3.0's AI profile that CycloneDX has no place for."""
    run, settings = (
        page["settings"].run,
        dict(next(one for one in page["models"] if one["name"] == model.name)["settings"]),
    )
    weights = hash_weights(reader, model)
    version = next((sha256[:16] for sha256 in weights.values()), None)
    provider = stated.text("provider") or f"the makers of {run}"
    final = layout.FINAL_MODEL.relative_path(model=model.name)
    references = {entry["bom-ref"] for entry in corpora}
    read = [one for one in page["corpora"] if layout.CORPUS.relative_path(corpus=one["name"]) in references]
    removed = [
        f"{stage['stage']}: {stage['in']} documents in, {stage['kept']} kept"
        for corpus in read
        for stage in corpus["totals"]["stages"]
    ]
    personal = [f"{corpus['name']}: {number} {kind}" for corpus in read for kind, number in corpus["personal_data"]]
    spdx = {
        "primaryPurpose": "model",
        "suppliedBy": provider,
        "domain": stated.text("content_types"),
        "autonomyType": "noAssertion",
        "hyperparameter": "; ".join(f"{name}={value}" for name, value in settings.items() if value is not None),
        "energyQuantity": format_kilowatt_hours(model.energy.joules) if model.energy.is_known else None,
        "energyUnit": "kilowattHour" if model.energy.is_known else None,
        "informationAboutTraining": describe_training(model),
        "informationAboutApplication": stated.text("intended_use"),
        "intendedUse": stated.text("intended_use"),
        "metric": "; ".join(f"{one['type']}: {one['value']}" for one in _metrics(model)),
        "modelDataPreprocessing": "; ".join(removed),
        "useSensitivePersonalInformation": "noAssertion",  # what patterns found is not what the law calls sensitive
    }
    own = {"folder": final, "personalDataReplaced": "; ".join(personal)}
    links = _external_references(
        website=page["settings"].provider_url,
        documentation=stated.text("model_documentation"),
        model_card=layout.MODEL_CARD,
        attestation=layout.ATTESTATION_LOG,
        bom=f"{layout.PAPERS}/spdx.json",
    )
    return _without_empty(
        {
            "type": "machine-learning-model",
            "bom-ref": f"model/{model.name}",
            "supplier": _without_empty(
                {"name": provider, "url": [url] if (url := page["settings"].provider_url) else None}
            ),
            "name": f"{run}/{model.name}",
            "version": version,
            "description": f"a language model of {model.parameters} parameters, trained on {model.tokens} tokens",
            "licenses": _licenses([text] if (text := stated.text("model_license")) else []),
            "purl": f"pkg:generic/{quote(run, safe='')}/{quote(model.name, safe='')}"
            + (f"@{version}" if version else ""),
            "externalReferences": links,
            "components": [
                {"type": "file", "bom-ref": path, "name": path, "hashes": [{"alg": "SHA-256", "content": sha256}]}
                for path, sha256 in weights.items()
            ],
            "modelCard": _model_card(model, corpora, _energy(model, provider), stated),
            "properties": _properties(spdx, "spdx:") + _properties(own, "polder:") + _energy_properties(model),
        }
    )


def _base_component(model: ModelFacts) -> Json | None:
    if not (base := model.began_with):
        return None
    return _without_empty(
        {
            "type": "machine-learning-model",
            "bom-ref": f"pretrained/{model.name}",
            "name": base["name"],
            "licenses": _licenses([base["license"]]),
            "externalReferences": _external_references(distribution=safe_url(base["url"])),
        }
    )


def build_cyclonedx_document(
    reader: RunReader, page: Json, stated: ProviderStatements, sources: list[SourceFacts], models: list[ModelFacts]
) -> Json:
    """Return the bill of materials; its time and serial number follow from the records, as do all its bytes."""
    texts = {source.name: _source_component(source) for source in sources}
    corpora = {corpus["name"]: _corpus_component(corpus) for corpus in page["corpora"]}
    classifiers = {corpus["name"]: _classifier_components(corpus) for corpus in page["corpora"]}
    depends: dict[str, list[str]] = {
        corpora[corpus["name"]]["bom-ref"]: [
            *(texts[name]["bom-ref"] for name, part in corpus["sources"] if name in texts and part["documents_out"]),
            *(one["bom-ref"] for one in classifiers[corpus["name"]]),
        ]
        for corpus in page["corpora"]
    }
    own, bases = [], []
    for model in models:
        read = [corpora[name] for name in list_training_corpora(reader, model) if name in corpora]
        own.append(_model_component(reader, page, model, read, stated))
        bases += [base] if (base := _base_component(model)) else []
        base_references = [base["bom-ref"]] if base else []
        depends[f"model/{model.name}"] = [entry["bom-ref"] for entry in read] + base_references
    components = [*own, *bases, *chain(*classifiers.values()), *corpora.values(), *texts.values()]
    ended = max((record.ended for record in reader.records), default="1970-01-01T00:00:00")
    content = {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": VERSION,
        "version": 1,
        "metadata": {
            "timestamp": f"{ended[:19]}Z",
            "tools": {"components": [{"type": "application", "name": "Polder"}]},
            "supplier": {"name": stated.text("provider") or f"the makers of {page['settings'].run}"},
            "properties": _properties({"standardCompliance": f"CycloneDX {VERSION}; SPDX 3.0.1"}, "spdx:"),
        },
        "components": components,
        "dependencies": [{"ref": one, "dependsOn": sorted(others)} for one, others in sorted(depends.items())],
    }
    serial = uuid.uuid5(NAMESPACE, json.dumps(content, sort_keys=True))
    return {**content, "serialNumber": f"urn:uuid:{serial}"}
