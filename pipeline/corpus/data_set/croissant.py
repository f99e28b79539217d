"""Metadata of a data set in the format Croissant 1.1, created and validated with mlcroissant."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import mlcroissant
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.hashing import hash_file
from pipeline.corpus.settings import PublishSettings

VERSION = "http://mlcommons.org/croissant/1.1"
PARQUET = "application/x-parquet"
RECORDS, FILES, SOURCES = "documents", "parquet", "sources"
SOURCES_FILE = "sources.parquet"  # name in the data set; the step writes it under a temporary name
COLUMNS = {
    "id": "SOURCE/FILE/ORIGINAL ID of the document, the same at every stage",
    "text": "the text, normalized and with personal data replaced by markers",
    "language": "the language that was identified, ISO 639-1",
    "language_score": "the probability of that language",
    "source": "the source that the document is from",
    "license": "the license that the document itself states, SPDX; null: that of its source, in the records of sources",
    "url": "the address of the document, where the source states one",
    "title": "the title of the document, where the source states one",
    "date": "the date of the document, where the source states one",
    "id_hash": "the first 8 bytes of the sha256 of the id, by which documents are ordered",
    "cluster": "the id of the best document of its cluster of copies, its own where there is none",
    "cluster_size": "copies that this document stands for, itself included",
    "quality": "how likely the text is a good one by the classifier of its language, 0 to 1, where there is one",
    "perplexity": "perplexity of the text under the model that the corpus names, where it names one",
    "flags": "what the document was flagged for",
}
SOURCE_COLUMNS = {
    "source": "the name of the source, as documents have it in their column `source`",
    "license": "the license, SPDX, of its documents that state none of their own",
    "license_key": "the field of the raw files in which documents state their own license, where they do",
    "basis": "why the source may be used",
    "holder": "who holds the rights",
    "contact": "whom to ask about the rights",
    "url": "where the text, the license, the agreement or the law is found",
    "date": "when the rights were looked at",
}


def license_url(license: str) -> str:
    """Return the URL of an SPDX identifier; anything else, such as LicenseRef-NAME or a URL, is returned unchanged."""
    plain = re.fullmatch(r"[A-Za-z0-9.-]+", license) and not license.startswith("LicenseRef-")
    return f"https://spdx.org/licenses/{license}" if plain else license


def _data_type(kind: pa.DataType) -> Any:
    types = mlcroissant.DataType
    kinds = {pa.types.is_integer: types.INTEGER, pa.types.is_floating: types.FLOAT, pa.types.is_boolean: types.BOOL}
    kinds |= {pa.types.is_date: types.DATE, pa.types.is_timestamp: types.DATETIME}
    return next((data_type for fits, data_type in kinds.items() if fits(kind)), types.TEXT)


def _make_field(
    context: mlcroissant.Context, column: pa.Field, records: str, texts: dict[str, str], **place: str
) -> mlcroissant.Field:
    is_list = pa.types.is_list(column.type)
    extract = mlcroissant.Extract(ctx=context, column=column.name)
    is_joined = (records, column.name) == (RECORDS, "source")
    return mlcroissant.Field(
        ctx=context,
        id=f"{records}/{column.name}",
        name=column.name,
        description=texts.get(column.name, f"the column {column.name}"),
        references=mlcroissant.Source(ctx=context, field=f"{SOURCES}/source") if is_joined else None,
        data_types=[_data_type(column.type.value_type if is_list else column.type)],
        is_array=True if is_list else None,
        array_shape="-1" if is_list else None,
        source=mlcroissant.Source(ctx=context, extract=extract, **place),
    )


def _make_file(context: mlcroissant.Context, path: str, size: int, sha256: str) -> mlcroissant.FileObject:
    return mlcroissant.FileObject(
        ctx=context,
        id=path,
        name=path.rpartition("/")[2],
        content_url=path,
        content_size=f"{size} B",
        encoding_formats=[PARQUET],
        sha256=sha256,
    )


def _make_record_set(
    context: mlcroissant.Context, name: str, description: str, key: str, fields: list[mlcroissant.Field]
) -> mlcroissant.RecordSet:
    return mlcroissant.RecordSet(
        ctx=context, id=name, name=name, description=description, key=[f"{name}/{key}"], fields=fields
    )


def croissant_metadata(
    settings: PublishSettings, dataset: dict[str, Any], description: str, first: Path, sources: Path
) -> dict[str, Any]:
    """Return the metadata as JSON-LD; `contentUrl` is relative to the folder of the corpus.

    Args:
        dataset: the result of `describe_data_set`.
        first: a file of documents; all files have the same columns.
        sources: the table of the sources.

    Raises:
        mlcroissant.ValidationError: the metadata is invalid Croissant.
    """
    context = mlcroissant.Context(conforms_to=VERSION)
    files = [_make_file(context, file["path"], file["bytes"], file["sha256"]) for file in dataset["files"]]
    file_set = mlcroissant.FileSet(
        ctx=context,
        id=FILES,
        name=FILES,
        description="the documents",
        encoding_formats=[PARQUET],
        includes=[file["path"] for file in dataset["files"]],
    )
    texts = COLUMNS | {
        name: f"the score of the text by the classifier {one.files[0].name}, license {one.license}, where it has one"
        for name, one in settings.classifiers.items()
    }
    fields = [_make_field(context, column, RECORDS, texts, file_set=FILES) for column in pq.read_schema(first)]
    records = _make_record_set(context, RECORDS, "one record for each document", "id", fields)
    # Documents without their own license have the license in this table.
    table = _make_file(context, SOURCES_FILE, sources.stat().st_size, hash_file(sources))
    columns = pq.read_schema(sources)
    fields = [_make_field(context, column, SOURCES, SOURCE_COLUMNS, file_object=SOURCES_FILE) for column in columns]
    described_by = "one record for each source, with its license and its rights"
    source_records = _make_record_set(context, SOURCES, described_by, "source", fields)
    content = hashlib.sha256("".join(file["sha256"] for file in dataset["files"]).encode()).hexdigest()
    provider = settings.provider or f"the makers of {settings.run}"
    masked = ", ".join(f"{number:,} × {kind}" for kind, number in dataset["personal_data"].items()) or "none found"
    described = mlcroissant.Metadata(
        ctx=context,
        name=f"{settings.run}-{settings.corpus}",
        description=description,
        version=f"1.0.0+{content[:16]}",
        cite_as=f"{provider}: {settings.run}, corpus {settings.corpus}, sha256 {content}",
        license=sorted({license_url(license) for license in dataset["licenses"]}),
        in_language=sorted(dataset["languages"]),
        publisher=[mlcroissant.Organization(ctx=context, name=provider)],
        data_collection_raw_data="; ".join(
            f"{name}: {source['rights']['holder']}, {source['license_summary']}, {source['rights']['basis']}"
            for name, source in dataset["sources"].items()
        ),
        data_preprocessing_protocol=[
            f"{stage['stage']}: {stage['in']:,} documents in, {stage['kept']:,} kept"
            for stage in dataset["totals"]["stages"]
        ],
        data_collection=settings.stated.get("data_selection"),
        data_use_cases=settings.stated.get("intended_use"),
        data_limitations=settings.stated.get("limitations"),
        data_release_maintenance_plan=settings.stated.get("removal"),
        personal_sensitive_information=[f"replaced by markers: {masked}"],
        distribution=[*files, file_set, table],
        record_sets=[records, source_records],
    )
    content_json: dict[str, Any] = described.to_json()
    mlcroissant.Dataset(jsonld=content_json)
    return content_json
