"""The commands with which an auditor checks a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.cli.parameters import AsJson, ModelName, RawFolder, RunFolder, command, make_group, print_json

PANEL = "Audit"
commands = make_group()
corpus = make_group("corpus", "History of a document", "polder corpus removed results/demo")
provenance = make_group("provenance", "Quote, pack, sign a run", 'polder provenance quote results/demo base "a text"')
papers = make_group("papers", "Score the summary", "polder papers check results/demo")


@command(commands, PANEL, "Check files and records", "polder verify results/demo")
def verify(
    run: RunFolder,
    crate_sha256: Annotated[str | None, typer.Option(metavar="HASH", help="The published hash of the crate.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The signer's public key, from them.")] = None,
    timestamp_certificates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The time authority's root certificate.")
    ] = None,
    log: Annotated[Path | None, typer.Option(metavar="FILE", help="The log of published checkpoints.")] = None,
    log_checkpoint: Annotated[str | None, typer.Option(metavar="HASH", help="The newest log checkpoint.")] = None,
    raw: RawFolder = None,
    recompute: Annotated[bool, typer.Option("--recompute", help="Compute figures and papers again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check every file, record and count of a run, and who vouches for them; exit with 1 if something is wrong."""
    from pipeline.audit.raw_files_and_commits import compare_files_and_commits
    from pipeline.audit.reproduce import rerun_summary_steps
    from pipeline.core.display_text import escape_to_one_line
    from pipeline.provenance.verify_run import TrustAnchors, verify_run

    verified = verify_run(run, TrustAnchors(crate_sha256, key, timestamp_certificates, log, log_checkpoint))
    codes = [1 if verified.problems else 0]
    problems, statements = [*verified.problems], [*verified.statements]

    def say(lines: list[str]) -> None:
        if not as_json:
            print("".join(f"{line}\n" for line in lines), end="", flush=True)

    say([*problems, *statements])
    for part in compare_files_and_commits(run, raw):
        lines = [escape_to_one_line(line) for line in part.format_lines()]
        (problems if part.problems else statements).extend(lines)
        codes.append(1 if part.problems else 0)
        say(lines)
    for outcome in rerun_summary_steps(run) if recompute else ():
        lines = list(outcome.format_lines())
        (problems if outcome.verdict else statements).extend(lines)
        codes.append(int(outcome.verdict))
        say(lines)
    say(verified.uncovered)
    code = next(worst for worst in (1, 2, 0) if worst in codes)
    if as_json:
        print_json({"exit_code": code, "problems": problems, "statements": statements, "uncovered": verified.uncovered})
    raise typer.Exit(code)


@command(commands, PANEL, "Trace a file or figure", "polder trace results/demo energy.total")
def trace(
    run: RunFolder,
    what: Annotated[str, typer.Argument(metavar="WHAT", help="A file, figure or source; a model with --step.")],
    step: Annotated[int | None, typer.Option(help="A training step of the model WHAT; from 1.")] = None,
    sample: Annotated[int, typer.Option(help="A sample of the step; from 0.")] = 0,
    token: Annotated[int, typer.Option(help="An input token of the sample; from 0.")] = 0,
    commands: Annotated[bool, typer.Option("--commands", help="Print whole command lines.")] = False,
) -> None:
    """Print where a file, a figure or a training token comes from, or everything that a source went into."""
    from pipeline.audit.quoted_text_tracing import trace_token
    from pipeline.provenance.trace import RunTracer

    lines = (
        RunTracer(run, whole_commands=commands).trace(what)
        if step is None
        else trace_token(run, what, step, sample, token)
    )
    print("\n".join(lines))


@command(commands, PANEL, "What a training step saw", "polder audit results/demo base --step 12 --sample 3")
def audit(
    run: RunFolder,
    model: ModelName,
    step: Annotated[int | None, typer.Option(help="List the documents of this step; from 1.")] = None,
    sample: Annotated[int | None, typer.Option(help="Only this sample, with all decisions; from 0.")] = None,
    document: Annotated[str | None, typer.Option(metavar="ID", help="List the steps that saw it.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the batch of every step.")] = False,
) -> None:
    """Print which documents a training step saw, or which steps saw a document; exit with 1 if a hash differs."""
    from pipeline.audit.training_documents import query_training_documents
    from pipeline.core.errors import InputError

    if (step is not None) + (document is not None) + check != 1:
        raise InputError("give one of --step, --document and --check")
    if step is None and sample is not None:
        raise InputError("--sample is one of a step: leave it out, or write --step with it")
    lines, contradicted = query_training_documents(run, model, step=step, sample=sample, document=document)
    print("\n".join(lines))
    raise typer.Exit(int(contradicted))


@command(commands, PANEL, "Run steps again", "polder reproduce results/demo --sample 10")
def reproduce(
    run: RunFolder,
    step: Annotated[
        str | None, typer.Argument(metavar="STEP", help="A record, such as corpus.filter.main.laws.0.")
    ] = None,
    sample: Annotated[int | None, typer.Option(metavar="N", help="Draw N steps, with equal chances.")] = None,
    seed: Annotated[str | None, typer.Option(help="The seed of the draw; else the crate's sha256.")] = None,
    raw: RawFolder = None,
    folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Keep the new files here.")] = None,
) -> None:
    """Run steps again from their records: exit with 0 if all is identical, 1 if something differs, 2 if it failed."""
    from pipeline.audit.reproduce import RerunVerdict, choose_records
    from pipeline.audit.reproduce import reproduce as reproduce_record
    from pipeline.core.job_command_lines import compress_numbered_paths

    chosen, not_drawn, drawn_with = choose_records(run, step, sample, seed)
    if drawn_with:
        print(f"drawn with the seed {drawn_with}: {len(chosen)} of {len(chosen) + len(not_drawn)} steps")
    verdicts: set[RerunVerdict] = set()
    for record in chosen:
        outcome = reproduce_record(run, record, folder, raw)
        verdicts.add(outcome.verdict)
        print("\n".join(outcome.format_lines()), flush=True)
    if drawn_with:
        print(f"not drawn: {', '.join(compress_numbered_paths(not_drawn)) or 'none'}")
    order = (RerunVerdict.DIFFERS, RerunVerdict.COULD_NOT, RerunVerdict.IDENTICAL)
    raise typer.Exit(int(next(verdict for verdict in order if verdict in verdicts)))


@command(corpus, PANEL, "History of a document", "polder corpus lineage results/demo laws/2024.txt/0")
def lineage(
    run: RunFolder,
    document: Annotated[str, typer.Argument(metavar="DOCUMENT", help="SOURCE/FILE/ID, or the ID alone.")],
    raw: RawFolder = None,
) -> None:
    """Print what every step of the corpus decided about one document, and where it is now."""
    from pipeline.audit.document_lineage import trace_document

    print("\n".join(trace_document(run, document, raw)))


@command(corpus, PANEL, "Removed documents", "polder corpus removed results/demo")
def removed(run: RunFolder) -> None:
    """List the removed documents of a run: the id, the step that removed it, the reason, and the value that decided."""
    from pipeline.audit.document_lineage import list_removed_documents

    print("\n".join(list_removed_documents(run)))


@corpus.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def why() -> None:
    """Name the command that replaces this one."""
    from pipeline.core.errors import InputError

    raise InputError("corpus why is now: polder corpus lineage RUN DOCUMENT")


@command(provenance, PANEL, "Find a text", 'polder provenance quote results/demo base "a text"')
def quote(
    run: RunFolder,
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text, or - for standard input.")],
    minimum: Annotated[int | None, typer.Option(metavar="CHARACTERS", help="Leave out shorter parts; 40.")] = None,
    all_documents: Annotated[bool, typer.Option("--all", help="Name all documents, not the first.")] = False,
) -> None:
    """Find the longest parts of a text in a model's training documents, with license, source and training steps."""
    from pipeline.audit.quoted_text_tracing import find_text_in_training as quote_text
    from pipeline.core.errors import InputError
    from pipeline.tokens.settings import MINIMUM_CHARACTERS

    try:
        text = sys.stdin.buffer.read().decode() if text == "-" else text
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is no UTF-8 ({error.reason} at byte {error.start}): give it so") from None
    shortest = MINIMUM_CHARACTERS if minimum is None else minimum
    for line in quote_text(run, model, text, shortest, all_documents=all_documents):
        print(line)


@command(provenance, PANEL, "Pack a run", "polder provenance pack results/demo --to deposit/demo")
def pack(
    run: RunFolder,
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A new folder; else deposit/RUN.")] = None,
    limit_bytes: Annotated[int | None, typer.Option(metavar="N", help="Leave out larger files; 100 MB.")] = None,
    url: Annotated[str | None, typer.Option(help="The address where all files are deposited.")] = None,
) -> None:
    """Write a run with all its evidence as a bag (BagIt, RFC 8493) that can be checked with Python alone."""
    from pipeline.provenance.pack import LIMIT_BYTES, VERIFIER_SCRIPT
    from pipeline.provenance.pack import pack as pack_run

    target = to or Path("deposit") / run.absolute().name
    target.parent.mkdir(parents=True, exist_ok=True)
    done = pack_run(run, target, LIMIT_BYTES if limit_bytes is None else limit_bytes, url)
    print(
        f"{target}: {done.inside} files ({done.inside_bytes} bytes) inside, {done.fetched} at their address, "
        f"{done.left_out} left out; check it with: python {target}/{VERIFIER_SCRIPT.name}"
    )


@command(provenance, PANEL, "Make a key", "polder provenance keygen private/signer.pem")
def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The private key to write; the public one is FILE.pub.")],
    algorithm: Annotated[Literal["p256", "ed25519"], typer.Option(help="Models are signed with P-256 only.")] = "p256",
) -> None:
    """Make a key that signs runs, and print the public key that you publish."""
    from pipeline.core import signing_keys

    public = signing_keys.generate_key_pair(file, algorithm)
    print(f"private key: {file} (keep it to yourself: whoever has it can sign as you)")
    sha256 = signing_keys.key_sha256(signing_keys.load_public_key(public))
    print(f"public key: {public} (publish it, and its sha256 {sha256})")


@command(provenance, PANEL, "For others' verifiers", "polder provenance export results/demo --to attestations")
def export(
    run: RunFolder,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder.")],
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The run's private key; signs in-toto's layout.")
    ] = None,
) -> None:
    """Write a signed run's attestations as Sigstore bundles, and with the key as layout and links of in-toto."""
    from pipeline.provenance.attestation_export import BUNDLES, LAYOUT, export_attestations

    done = export_attestations(run, to, key)
    print(f"{to / BUNDLES}: {done.jobs} bundles, for cosign verify-blob-attestation")
    if done.has_layout:
        print(f"{to / LAYOUT}: the layout of {done.jobs} jobs and their links, for in-toto-verify")


@command(provenance, PANEL, "Attest new evidence", "polder provenance attest results/demo")
def attest(run: RunFolder) -> None:
    """Attest evidence that is new or has changed, in the run's log of attestations."""
    from pipeline.provenance.evidence_attestation import attest_evidence as attest_evidence

    attest_evidence(run)


@command(papers, PANEL, "Score the summary", "polder papers check results/demo")
def check(run: RunFolder, as_json: AsJson = False) -> None:
    """Score the summary of training content by a public rubric, and print which key would raise the score."""
    from pipeline.report.papers.content_summary_rubric import format_score, score_summary

    score = score_summary(run)
    if as_json:
        print_json(score.as_json())
        return
    print("\n".join(format_score(score)))


commands.add_typer(corpus, rich_help_panel=PANEL)
commands.add_typer(provenance, rich_help_panel=PANEL)
commands.add_typer(papers, rich_help_panel=PANEL)
