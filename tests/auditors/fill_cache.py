"""Fill the cache of rocrate-validator with the local contexts, so that it needs no network.

It runs in the environment of the auditors: `.venv-auditors/bin/python tests/auditors/fill_cache.py CACHE`.
"""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests_cache import CachedSession
from urllib3 import HTTPResponse

CONTEXTS = {
    "https://w3id.org/ro/crate/1.1/context": "ro-crate-1.1.jsonld",
    "https://w3id.org/ro/terms/workflow-run/context": "workflow-run.jsonld",
}


class _Kept(HTTPAdapter):
    """Serve the URLs of the contexts from the files."""

    def send(self, request: PreparedRequest, **_: Any) -> Response:
        content = (Path(__file__).parent / "contexts" / CONTEXTS[str(request.url)]).read_bytes()
        headers = {"Content-Type": "application/ld+json"}
        return self.build_response(
            request,
            HTTPResponse(BytesIO(content), headers, 200, preload_content=False, request_url=request.url),
        )


def fill(cache: Path) -> None:
    """Write the cache that `--cache-path` names, with a response for each URL."""
    session = CachedSession(cache_name=str(cache), backend="sqlite", expire_after=-1)
    session.mount("https://", _Kept())
    for address in CONTEXTS:
        session.get(address)


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
