"""A hub of data sets on loopback that implements what its client needs for a snapshot of a revision."""

from __future__ import annotations

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Hub:
    """Data sets by name and commit; the last commit of a data set is its branch main."""

    def __init__(self) -> None:
        self.data_sets: dict[str, dict[str, dict[str, bytes]]] = {}
        self.breaks_off: str | None = None
        self.garbles: str | None = None
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def add(self, name: str, **files: bytes | str) -> str:
        """Publish a commit of a data set and return its hash; in a file's name __ stands for / and _ for a dot."""
        content = {
            file.replace("__", "/").replace("_", "."): text if isinstance(text, bytes) else text.encode()
            for file, text in files.items()
        }
        commit = hashlib.sha1(repr((name, content)).encode()).hexdigest()
        self.data_sets.setdefault(name, {}).pop(commit, None)
        self.data_sets[name][commit] = content
        return commit

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked.append(path)
        words = path.removeprefix("/api").split("/")[2:]
        name, kind, revision = "/".join(words[:2]), *(words[2:4] or ["revision", "main"])
        commits = self.data_sets.get(name, {})
        commit = next(reversed(commits), "") if revision == "main" else revision
        if commit not in commits:
            request.send_response(404)
            request.send_header("X-Error-Code", "RevisionNotFound" if commits else "RepoNotFound")
            request.end_headers()
        elif kind == "resolve":
            self.send(request, commit, "/".join(words[4:]), commits[commit])
        else:
            listed = [entry(file, content) for file, content in commits[commit].items()]
            siblings = [
                {"rfilename": file["path"], "size": file["size"], "blobId": file["oid"], "lfs": None} for file in listed
            ]
            answer_content = listed if kind == "tree" else {"id": name, "sha": commit, "siblings": siblings}
            self.write(request, json.dumps(answer_content).encode())

    def send(self, request: BaseHTTPRequestHandler, commit: str, file: str, files: dict[str, bytes]) -> None:
        content = files[file][::-1] if file == self.garbles else files[file]
        if file == self.breaks_off and "Range" in request.headers:
            request.send_error(500)
            return
        sent = len(content) // 2 if file == self.breaks_off else len(content)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{entry(file, files[file])["oid"]}"'}
        self.write(request, content, sent, **headers)

    @staticmethod
    def write(request: BaseHTTPRequestHandler, content: bytes, sent: int | None = None, **headers: str) -> None:
        request.send_response(200)
        for header, value in {"Content-Length": str(len(content)), **headers}.items():
            request.send_header(header, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content[:sent])


def entry(file: str, content: bytes) -> dict[str, Any]:
    """Return the hub's file entry: Parquet with its sha256, others with their git hash."""
    listed = {"type": "file", "path": file, "size": len(content)}
    listed["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    if file.endswith(".parquet"):
        listed["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return listed
