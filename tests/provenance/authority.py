"""A timestamp authority for tests: OpenSSL's `ts` behind an HTTP server on this machine."""

from __future__ import annotations

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

CONFIGURATION = """
[tsa]
default_tsa = here
[here]
serial = {folder}/serial
signer_cert = {folder}/stamper.pem
signer_key = {folder}/stamper.key
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256, sha384, sha512
accuracy = secs:1
ordering = no
tsa_name = no
ess_cert_id_chain = no
ess_cert_id_alg = sha256
[stamps]
extendedKeyUsage = critical,timeStamping
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
"""


class Authority:
    """Answer timestamp requests until the context exits."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        (folder / "openssl.cnf").write_text(CONFIGURATION.format(folder=folder))
        (folder / "serial").write_text("01\n")
        new = ("req", "-newkey", "rsa:2048", "-nodes", "-days", "2")
        self._openssl(*new, "-x509", "-subj", "/CN=root", "-keyout", "root.key", "-out", "root.pem")
        self._openssl(*new[:-2], "-subj", "/CN=stamper", "-keyout", "stamper.key", "-out", "stamper.csr")
        signed = ("-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial", "-days", "2", "-out", "stamper.pem")
        extensions = ("-extfile", "openssl.cnf", "-extensions", "stamps")
        self._openssl("x509", "-req", "-in", "stamper.csr", *signed, *extensions)
        self.certificate = folder / "root.pem"
        authority = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name is required by http.server
                request = authority.folder / "request.tsq"
                request.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
                words = ("ts", "-reply", "-config", "openssl.cnf", "-section", "here")
                authority._openssl(*words, "-queryfile", request.name, "-out", "answer.tsr")
                self.send_response(200)
                self.end_headers()
                self.wfile.write((authority.folder / "answer.tsr").read_bytes())

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def __enter__(self) -> Authority:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
