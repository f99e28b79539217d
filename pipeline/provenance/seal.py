"""The end of a start: models are signed, evidence is attested, and the head of the log is published.

Models get a signature in the format of OpenSSF's model-signing 1.0, which its own command verifies. The head, the hash
of the log's last line, covers all that was attested; an authority's timestamp (RFC 3161) says that it was there then,
and a line in a log outside the results, to which nothing but new heads is added, that it was seen.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from pipeline.attestation import keys
from pipeline.attestation.log import KEY, lines
from pipeline.ground import owner, whole
from pipeline.ground.errors import InputError
from pipeline.provenance import evidence, heads
from pipeline.provenance.evidence import PUBLIC_KEY, SIGNER, TIMESTAMPS
from pipeline.provenance.records import RECORDS
from pipeline.provenance.settings import Provenance

SIGNATURES = "provenance/signatures"

Say = Callable[[str], None]


def say(sentence: str) -> None:
    """Say something when Snakemake's own log is closed already."""
    print(sentence, file=sys.stderr, flush=True)


def begin(run_directory: Path, settings: Provenance) -> None:
    """Let the jobs of this start sign what they attest, and write down whose key it is.

    Raises:
        InputError: the key cannot be used, or the run is signed with another one.
    """
    if settings.key is None:
        if (run_directory / PUBLIC_KEY).is_file():
            raise InputError(f"{run_directory} is signed: give provenance.key, so that what is added is signed as well")
        return
    path = Path(settings.key).expanduser().absolute()
    public = keys.private(path).public_key()
    text, own = keys.public_text(public), run_directory / PUBLIC_KEY
    if own.is_file() and own.read_bytes() != text:
        raise InputError(f"provenance.key: {run_directory} is signed with another key: go on with that one, or anew")
    if any(not line.signatures for line in lines(run_directory)) and not own.is_file():
        raise InputError(
            f"provenance.key: {run_directory} was begun unsigned, and a signature would vouch for what nobody signed: "
            "take another run.name"
        )
    os.environ[KEY] = str(path)
    whole.write(own, text)  # half a key would be another one for the next start
    signer = {"owner": settings.owner, "algorithm": keys.algorithm(public), "key_sha256": keys.key_sha256(public)}
    told = {**signer, "timestamp": settings.timestamps and settings.timestamps.url}
    whole.write_json(run_directory / SIGNER, told)


def sign_models(run_directory: Path, key: Path) -> None:
    """Sign the final folder of each model that has no signature since it was exported, with a P-256 key."""
    if keys.algorithm(keys.private(key).public_key()) != "p256":
        return  # the format knows no Ed25519 keys
    import model_signing  # it takes seconds

    for record in sorted((run_directory / RECORDS).glob("pretrain.export.*.json")):
        model = record.name.removeprefix("pretrain.export.").removesuffix(".json")
        folder, signature = run_directory / "models" / model / "final", run_directory / SIGNATURES / f"{model}.sig"
        if folder.is_dir() and not (signature.is_file() and signature.stat().st_mtime >= record.stat().st_mtime):
            signature.parent.mkdir(exist_ok=True)
            signing = model_signing.signing.Config()  # type: ignore[no-untyped-call]
            partial = owner.partial(signature)
            signing.use_elliptic_key_signer(private_key=key).sign(folder, partial)
            partial.replace(signature)


def publish(run_directory: Path, settings: Provenance, say: Say) -> None:
    """Have the head of the log timestamped and appended to the log outside, unless that was done."""
    newest = deque(lines(run_directory), maxlen=1)
    if not newest:
        return
    last = newest[0]
    if settings.timestamps and not (run_directory / TIMESTAMPS / f"{last.sha256}.tsr").is_file():
        from pipeline.provenance import timestamps  # few starts ask

        try:
            answer = timestamps.ask(last.sha256, settings.timestamps)
            whole.write(run_directory / TIMESTAMPS / f"{last.sha256}.tsr", answer)
        except InputError as error:
            say(str(error))
    if settings.log:
        heads.publish(Path(settings.log).expanduser(), heads.Head(run_directory.name, last.number, last.sha256))


def end(run_directory: Path, settings: Provenance, say: Say) -> None:
    """Sign the models, attest the evidence and publish the head; what cannot be done is said."""
    try:
        if os.environ.get(KEY):
            sign_models(run_directory, Path(os.environ[KEY]))
        evidence.attest(run_directory)
        publish(run_directory, settings, say)
    except (InputError, OSError) as error:
        say(f"the evidence of this start is not attested: {error}")
