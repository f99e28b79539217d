"""The RO-Crate of a run: every file with its hash, every job with what it read, wrote and cost.

The metadata follow RO-Crate 1.1 and the Provenance Run Crate profile 0.5. They are computed from the records and the
files alone: no identifier is random and no date is today's, so the same results give the same bytes.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline import layout
from pipeline.core.archived_run_files import FileStore
from pipeline.core.attestation_log import find_checkpoint_before_attempt
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import Attempt, Record, load_records, load_run_attempts, select_record_files
from pipeline.energy.run_energy_report_reader import read_energy_accounting
from pipeline.provenance.crate_actions import COMMIT_URL, COMPLETED_STATUS, LANGUAGE, CrateActions, CrateWorkflow
from pipeline.provenance.crate_graph import (
    CHECKPOINT_IDENTIFIER,
    CONTEXT,
    CRATE_SPECIFICATION,
    PROFILES,
    WORKFLOW_CRATE,
    CrateFiles,
    CrateGraph,
    reference,
    references,
)
from pipeline.provenance.inventory import list_artifacts
from pipeline.provenance.settings import CrateSettings

README_TEXT = """# {name}

{description}

This folder is an RO-Crate: `{metadata}` lists every file with its sha256, and every job with what it read, wrote and
cost. The workflow that made it is in `{workflow}`, and each job's own record in `{records}`. Open `{page}` first.
"""


def read_workflow_files(workflow: list[Path]) -> dict[str, bytes]:
    """Return the Snakefile and the files that it includes by their paths in the run.

    Raises:
        InputError: there is no Snakefile among them.
    """
    main = next((file for file in workflow if file.name == "Snakefile"), None)
    if main is None:
        raise InputError("the crate needs the workflow: give the Snakefile and its rules as input `workflow`")
    below = main.absolute().parent
    return {
        f"{layout.WORKFLOW_FILES}/{file.absolute().relative_to(below).as_posix()}": file.read_bytes()
        for file in workflow
    }


def _add_pretrained_models(files: CrateFiles, settings: CrateSettings, records: list[Record]) -> None:
    """Add pretrained models with their license, and which models of the run are based on them."""
    for record in records:
        if record.step == "pretrain.adopt" and (model := str(record.instance["model"])) in settings.pretrained:
            taken = settings.pretrained[model]
            identifier = files.graph.add_entity(
                f"#pretrained/{quote(model)}",
                "Dataset",
                name=taken.display_name,
                license=reference(files.graph.add_license(taken.license)),
                url=taken.url,
                mentions=references(files.file_identifier(entry) for entry in record.inputs if entry.name == "model"),
            )
            files.graph.entities[f"{layout.MODEL.relative_path(model=quote(model))}/"]["isBasedOn"] = reference(
                identifier
            )


def _add_classifiers(files: CrateFiles, settings: CrateSettings, records: list[Record]) -> None:
    """Add the pretrained classifiers of documents, with their license and files."""
    read: dict[str, dict[str, None]] = {}
    for record in records:
        if record.step == "corpus.classify":
            identifiers = [files.file_identifier(entry) for entry in record.inputs if entry.name == "classifier"]
            key = f"{record.instance['corpus']}/{record.instance['classifier']}"
            read.setdefault(key, {}).update(dict.fromkeys(identifiers))
    for key, taken in settings.classifiers.items():
        identifier = files.graph.add_entity(
            f"#classifier/{quote(key)}",
            "Dataset",
            name=f"classifier {key}: {taken.display_name}",
            license=reference(files.graph.add_license(taken.license)),
            url=taken.url,
            hasPart=references(read.get(key, ())),
        )
        for file in read.get(key, ()):
            files.graph.entities[file]["isPartOf"] = reference(identifier)


def _add_log_checkpoint(graph: CrateGraph, run_directory: Path) -> None:
    """Add the checkpoint of the attestation log before this crate, which the crate's hash then covers."""
    if checkpoint := find_checkpoint_before_attempt(run_directory, "provenance.crate"):
        graph.add_entity(
            CHECKPOINT_IDENTIFIER,
            "CreativeWork",
            name="log checkpoint",
            description=f"the last line of {layout.ATTESTATION_LOG} before this crate was made: its number and its "
            "sha256, which covers all lines before it",
            position=checkpoint.lines,
            sha256=checkpoint.sha256,
        )


def _add_workflow(graph: CrateGraph, workflow: CrateWorkflow, written: dict[str, bytes], records: list[Record]) -> None:
    """Describe the Snakefile as the workflow of the crate, and its rules and README."""
    main = graph.entities[workflow.identifier]
    commits = sorted({str(record.git["commit"]) for record in records if record.git and record.git.get("commit")})
    steps = workflow.add_steps()
    main |= {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "Polder",
        "programmingLanguage": reference(LANGUAGE),
        "conformsTo": reference("https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"),
        "license": reference(graph.add_license("Apache-2.0")),
        "version": ", ".join(commits) or main["sha256"],
        "url": COMMIT_URL.format(commit=commits[-1]) if commits else workflow.identifier,
        "step": references(steps),
        "hasPart": references(tool for tools in workflow.tools.values() for tool in tools),
    }
    for path in written:
        if path.startswith(f"{layout.WORKFLOW_FILES}/"):
            graph.entities[quote(path)]["encodingFormat"] = "text/plain"
    graph.entities[layout.RUN_README]["about"] = reference("./")


def _add_run(
    graph: CrateGraph,
    actions: CrateActions,
    workflow: CrateWorkflow,
    records: list[Record],
    energies: list[str],
    title: str,
) -> str:
    """Add the action of the whole workflow, from the configuration to the final outputs."""
    read = {entry.path for record in records for entry in record.inputs}
    left = [actions.files.result_identifier(e) for r in records for e in r.outputs if e.path not in read]
    left = left or [quote(records[-1].archive or records[-1].file)]
    plans = sorted({(r.frozen.path, r.frozen.sha256) for r in records if r.frozen})
    given = [actions.files.file_identifier(e) for r in records for e in r.inputs if e.is_outside_run]
    main = graph.entities[workflow.identifier]
    for path, hash_ in plans:
        parameter = graph.add_parameter("#parameter/workflow/input/configuration", "configuration", "Text")
        main["input"] = reference(parameter)
        value = graph.add_entity(
            f"#configuration/{hash_[:16]}",
            "PropertyValue",
            name="configuration",
            value=path,
            description=f"configuration and versions at a start of the run: the file with the sha256 {hash_}",
            exampleOfWork=reference(parameter),
        )
        given.append(value)
    results = graph.add_parameter("#parameter/workflow/output/results", "results", "File")
    main["output"] = reference(results)
    for identifier in dict.fromkeys(left):
        known = graph.entities[identifier].get("exampleOfWork", [])
        parameters = known if isinstance(known, list) else [known]
        graph.link_entity_to_parameters(identifier, [*(parameter["@id"] for parameter in parameters), results])
    return graph.add_entity(
        "#run",
        "CreateAction",
        name=title,
        description="all jobs of the run, from raw text to the report",
        instrument=reference(workflow.identifier),
        agent=reference(actions.agent),
        object=references(given),
        result=references(left),
        startTime=min(record.started for record in records),
        endTime=max(record.ended for record in records),
        actionStatus=COMPLETED_STATUS,
        resourceUsage=references(identifier for identifier in energies if identifier == "#energy/total"),
        subjectOf=reference(layout.RUN_README),
    )


def _build_metadata(
    settings: CrateSettings,
    run_directory: Path,
    records: list[Record],
    lost: list[Attempt],
    starts: dict[str, str | None],
    written: dict[str, bytes],
) -> tuple[str, CrateFiles]:
    """Return the text of the metadata, and what they list."""
    paths = [
        path
        for path in list_artifacts(run_directory)
        if path != layout.RUN_README and not path.startswith(f"{layout.WORKFLOW_FILES}/")
    ]
    graph = CrateGraph()
    files = CrateFiles(graph, run_directory, paths, records)
    inside = files.add_datasets()
    files.add_all_files()
    files.add_archived_files()
    files.add_step_inputs_and_outputs()
    _add_pretrained_models(files, settings, records)
    _add_classifiers(files, settings, records)
    _add_log_checkpoint(graph, run_directory)
    for path, content in sorted(written.items()):
        files.add_file(path, sha256(content).hexdigest(), len(content), is_left_over=False)
    paths = sorted([*paths, *written])
    agent = graph.add_organization(settings.provider, settings.provider_url, settings.contact)
    workflow = CrateWorkflow(files, f"{layout.WORKFLOW_FILES}/Snakefile")
    actions = CrateActions(files, workflow, agent, read_energy_accounting(run_directory))
    commits = [str(record.git["commit"]) for record in records if record.git and record.git.get("commit")]
    for record in records:
        actions.add_job(record, starts.get(record.attempt or ""))
    for attempt in lost:
        actions.add_attempt(attempt, commits[-1] if commits else None)
    _add_workflow(graph, workflow, written, records)
    energies = actions.add_run_energies()
    run = _add_run(graph, actions, workflow, records, energies, f"run {settings.run}")
    actions.add_invocations(workflow.add_engine(), run)
    for profile, (name, version) in PROFILES.items():
        graph.add_entity(profile, "CreativeWork", name=name, version=version)
    top = CrateGraph()
    top.add_entity(
        layout.CRATE,
        "CreativeWork",
        about=reference("./"),
        conformsTo=references([CRATE_SPECIFICATION, WORKFLOW_CRATE]),
    )
    top.add_entity(
        "./",
        "Dataset",
        name=settings.name or settings.run,
        description=settings.description,
        datePublished=max(record.ended for record in records)[:10],
        license=reference(graph.add_license(settings.license)),
        author=reference(agent),
        publisher=reference(agent),
        conformsTo=references(PROFILES),
        mainEntity=reference(workflow.identifier),
        hasPart=references([*inside.values(), *(quote(path) for path in paths if path not in inside)]),
        mentions=references(
            [run, *actions.done, *([CHECKPOINT_IDENTIFIER] * (CHECKPOINT_IDENTIFIER in graph.entities))]
        ),
        variableMeasured=references(energies),
    )
    text = json.dumps(
        {"@context": CONTEXT, "@graph": [*top.entities.values(), *graph.sorted_entities()]},
        ensure_ascii=False,
        indent=1,
    )
    return f"{text}\n", files


def run(
    settings: CrateSettings,
    *,
    files: list[Path],
    workflow: list[Path],
    crate: Path,
    readme: Path,
    kept: Path,
) -> dict[str, Any]:
    """Write the RO-Crate metadata of the run whose folder is that of `crate`, and return counts.

    The jobs of the run are the records among `files` (all records of the folder if there is none among them);
    other files in the folder are listed without a job. Joules are those of `report/energy.json`.
    `workflow` is the Snakefile and what it includes; they are copied to the folder `kept`. `readme` explains the
    folder to a person. Prints the sha256 of the metadata.
    """
    run_directory = crate.parent
    (run_directory / layout.FORMER_PROV).unlink(missing_ok=True)
    planned = {file.name for file in select_record_files(FileStore(run_directory), files)}
    records = [
        record
        for record in load_records(run_directory)
        if record.step != "provenance.crate" and (not planned or Path(record.file).name in planned)
    ]
    if not records:
        raise InputError(f"{layout.RECORDS} holds no record of a finished step: run the steps before the crate")
    attempts = [attempt for attempt in load_run_attempts(run_directory) if attempt.step != "provenance.crate"]
    standing = {record.attempt for record in records} | {record.computing_attempt_file_name for record in records}
    lost = [attempt for attempt in attempts if Path(attempt.file).name not in standing]
    starts = {Path(attempt.file).name: attempt.snakemake for attempt in attempts}
    readme_text = README_TEXT.format(
        name=settings.name or settings.run,
        description=settings.description,
        metadata=layout.CRATE,
        workflow=layout.WORKFLOW_FILES,
        records=layout.RECORDS,
        page=layout.REPORT_PAGE,
    )
    copies = read_workflow_files(workflow)
    written = {**copies, layout.RUN_README: readme_text.encode()}
    text, listed = _build_metadata(settings, run_directory, records, lost, starts, written)
    for path, content in copies.items():
        target = kept / Path(path).relative_to(layout.WORKFLOW_FILES)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    readme.write_bytes(written[layout.RUN_README])
    crate.write_text(text, encoding="utf-8")
    print(f"crate sha256: {hash_file(crate)}", flush=True)
    return {
        "files": len(listed.paths) + len(written),
        "bytes": listed.total_bytes,
        "jobs": len(records),
        "attempts_without_outputs": len(lost),
    }
