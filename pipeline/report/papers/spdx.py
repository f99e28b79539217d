"""The models and texts of a run as SPDX 3.0.1, with its profiles AI and Dataset, as JSON-LD."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from pipeline import layout
from pipeline.core.markup import safe_url
from pipeline.report.papers.facts import ModelFacts, SourceFacts, format_kilowatt_hours
from pipeline.report.run_reader import Json, RunReader
from pipeline.report.settings import ProviderStatements

VERSION = "3.0.1"
CONTEXT = f"https://spdx.org/rdf/{VERSION}/spdx-context.jsonld"
CREATION = "_:creation"
AVAILABILITY = {"public": "directDownload"}


def list_training_corpora(reader: RunReader, model: ModelFacts) -> list[str]:
    """Return the corpora whose documents a model was trained on: those of the shards that its segments read."""
    read = {
        index["tokens"]
        for segment in reader.segments(model=model.name)
        for entry in segment.inputs
        if (index := layout.TOKEN_INDEX.parse(entry.path))
    }
    return sorted(
        {
            documents["corpus"]
            for shard in reader.records_of("tokens.shard")
            if shard.instance.get("tokens") in read
            for entry in shard.inputs
            if (documents := layout.FINAL_DOCUMENTS.parse(entry.path))
        }
    )


class _Document:
    """The elements of one run; every one has an address of its own and names who made it."""

    def __init__(self, run: str) -> None:
        self.prefix = f"urn:polder:{quote(run)}"
        self.elements: list[Json] = []

    def add(self, kind: str, place: str, /, **properties: Any) -> str:
        """Add an element and return its address; properties without a value are left out."""
        identifier = f"{self.prefix}:{quote(place)}"
        known = {key: value for key, value in properties.items() if value not in (None, [], "")}
        self.elements.append({"type": kind, "spdxId": identifier, "creationInfo": CREATION, **known})
        return identifier

    def relate(self, one: str, kind: str, others: Iterable[str]) -> None:
        """Add a relationship of an element to others."""
        to = sorted(others)
        if to:
            name = f"{one.removeprefix(self.prefix + ':')}/{kind}"
            self.add("Relationship", name, **{"from": one, "relationshipType": kind, "to": to})

    def license(self, expression: str) -> str:
        """Return the address of a license; it is added once."""
        identifier = f"{self.prefix}:{quote(f'license/{expression}')}"
        if all(element["spdxId"] != identifier for element in self.elements):
            self.add(
                "simplelicensing_LicenseExpression",
                f"license/{expression}",
                simplelicensing_licenseExpression=expression,
            )
        return identifier


def _dictionary_entries(values: Iterable[tuple[str, Any]]) -> list[Json]:
    return [
        {"type": "DictionaryEntry", "key": key, "value": "none" if value is None else str(value)}
        for key, value in values
    ]


def _describe_previous_training(model: ModelFacts) -> str:
    if model.branch_of is None:
        return f"; without what {model.began_with['name']} took before" if model.began_with else ""
    base, step = model.branch_of
    return f"; it continues step {step} of {base}, without the seconds and energy of that training"


def _energy(model: ModelFacts) -> Json | None:
    if not model.energy.is_known:
        return None
    described = {
        "type": "ai_EnergyConsumptionDescription",
        "ai_energyQuantity": format_kilowatt_hours(model.energy.joules),
        "ai_energyUnit": "kilowattHour",
    }
    return {"type": "ai_EnergyConsumption", "ai_trainingEnergyConsumption": [described]}


def hash_weights(reader: RunReader, model: ModelFacts) -> dict[str, str]:
    """Return the SHA-256 of each file of a model's final weights by its path in the run."""
    return {
        entry.path: entry.sha256
        for record in reader.records_of("pretrain.export", model=model.name)
        for entry in record.outputs
        if entry.path.endswith(".safetensors")
    }


def describe_training(model: ModelFacts) -> str:
    """Return operations, tokens, seconds and hardware of a training in one sentence."""
    return (
        f"{model.flops(6):.3e} floating-point operations by 6ND, "
        f"{model.tokens} tokens, {model.seconds:.0f} s on {' + '.join(model.hardware)}"
        + _describe_previous_training(model)
    )


def build_spdx_document(
    reader: RunReader, page: Json, stated: ProviderStatements, sources: list[SourceFacts], models: list[ModelFacts]
) -> Json:
    """Return the document; its time is that of the newest record, so that the same run gives the same bytes."""
    run: str = page["settings"].run
    document = _Document(run)
    ended = max((record.ended for record in reader.records), default="1970-01-01T00:00:00")
    provider = document.add("Organization", "provider", name=stated.text("provider") or f"the makers of {run}")
    tool = document.add("Tool", "polder", name="Polder")
    texts = {}
    for source in sources:
        texts[source.name] = document.add(
            "dataset_DatasetPackage",
            f"source/{source.name}",
            name=source.name,
            description="; ".join(filter(None, [source.basis, source.holder and f"holder: {source.holder}"])),
            software_primaryPurpose="data",
            software_downloadLocation=safe_url(source.address),
            dataset_datasetType=["text"],
            dataset_datasetSize=source.bytes_read,
            dataset_datasetAvailability=AVAILABILITY.get(source.category),
        )
        if re.fullmatch(r"[A-Za-z0-9.+() -]+", source.license):
            document.relate(texts[source.name], "hasDeclaredLicense", [document.license(source.license)])
        if source.own_licenses:  # all of them hold, each of its documents
            each = [f"({license})" if " OR " in license else license for license in source.own_licenses]
            document.relate(texts[source.name], "hasConcludedLicense", [document.license(" AND ".join(each))])
    corpora = {}
    for corpus in page["corpora"]:
        totals = corpus["totals"]
        corpora[corpus["name"]] = document.add(
            "dataset_DatasetPackage",
            layout.CORPUS.relative_path(corpus=corpus["name"]),
            name=f"corpus {corpus['name']}",
            software_primaryPurpose="data",
            dataset_datasetType=["text"],
            dataset_datasetSize=totals["bytes_out"],
            dataset_dataPreprocessing=[
                f"{stage['stage']}: {stage['in']} documents in, {stage['kept']} kept" for stage in totals["stages"]
            ],
            dataset_anonymizationMethodUsed=[
                f"{kind}: {number} replaced by markers" for kind, number in corpus["personal_data"]
            ],
            dataset_intendedUse="pre-training of language models",
        )
        used = [texts[name] for name, part in corpus["sources"] if name in texts and part["documents_out"]]
        document.relate(corpora[corpus["name"]], "descendantOf", used)
        scored_by = []
        for name, one in corpus["classifiers"]:
            scored_by.append(
                document.add(
                    "ai_AIPackage",
                    f"classifier/{corpus['name']}/{name}",
                    name=one["files"][0]["name"],
                    software_primaryPurpose="model",
                    software_downloadLocation=safe_url(one["url"]),
                    verifiedUsing=[
                        {"type": "Hash", "algorithm": "sha256", "hashValue": one["files"][0]["sha256"]},
                    ],
                )
            )
            document.relate(scored_by[-1], "hasDeclaredLicense", [document.license(one["license"])])
        document.relate(corpora[corpus["name"]], "usesTool", scored_by)
    for model in models:
        shown = next(entry for entry in page["models"] if entry["name"] == model.name)
        weights = [*hash_weights(reader, model).values()]
        identifier = document.add(
            "ai_AIPackage",
            f"model/{model.name}",
            name=f"{run}/{model.name}",
            suppliedBy=provider,
            releaseTime=f"{page['settings'].disclosure.placed_on_market}T00:00:00Z"
            if page["settings"].disclosure.placed_on_market
            else None,
            software_primaryPurpose="model",
            software_packageVersion=next((sha256[:16] for sha256 in weights), None),
            verifiedUsing=[{"type": "Hash", "algorithm": "sha256", "hashValue": sha256} for sha256 in weights],
            ai_typeOfModel=["decoder-only transformer"],
            ai_hyperparameter=_dictionary_entries(shown["settings"]),
            ai_metric=_dictionary_entries(
                [
                    ("validation loss, nats per token", model.validation_loss),
                    *(
                        (f"{task['task']} ({task['language']}), {task['metric']}", task["value"])
                        for task in model.scores
                    ),
                ]
            ),
            ai_energyConsumption=_energy(model),
            ai_informationAboutTraining=describe_training(model),
            ai_informationAboutApplication=stated.text("intended_use"),
            ai_limitation=stated.text("limitations"),
        )
        document.relate(
            identifier, "trainedOn", [corpora[name] for name in list_training_corpora(reader, model) if name in corpora]
        )
        if license := stated.text("model_license"):
            document.relate(identifier, "hasDeclaredLicense", [document.license(license)])
        if pretrained := model.began_with:
            base = document.add(
                "ai_AIPackage",
                f"pretrained/{model.name}",
                name=pretrained["name"],
                software_primaryPurpose="model",
                software_downloadLocation=safe_url(pretrained["url"]),
            )
            document.relate(identifier, "descendantOf", [base])
            document.relate(base, "hasDeclaredLicense", [document.license(pretrained["license"])])
    own = [e["spdxId"] for e in document.elements if e["type"] == "ai_AIPackage" and e.get("suppliedBy")]
    roots = own or [*corpora.values()]
    document.add(
        "SpdxDocument",
        "document",
        name=run,
        profileConformance=["core", "software", "simpleLicensing", "ai", "dataset"],
        rootElement=roots,
        element=sorted(element["spdxId"] for element in document.elements),
    )
    creation = {
        "type": "CreationInfo",
        "@id": CREATION,
        "specVersion": VERSION,
        "created": f"{ended[:19]}Z",
        "createdBy": [provider],
        "createdUsing": [tool],
    }
    return {"@context": CONTEXT, "@graph": [creation, *document.elements]}
