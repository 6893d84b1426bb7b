"""A hub on this machine: one repository, served from a folder as the Hugging Face hub would, byte ranges too.

It counts the bytes of weights that it was asked for.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = (".safetensors", ".gguf", ".bin")


class Hub(ThreadingHTTPServer):
    """Serves `folder` as the repository `repo`."""

    def __init__(self, repo: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.repo = repo
        self.folder = folder
        self.weight_bytes_sent = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(repo: str, folder: Path) -> Iterator[Hub]:
    """The hub, for a while."""
    hub = Hub(repo, folder)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        file = re.fullmatch(rf"/{self.server.repo}/resolve/[^/]+/(.+)", path)
        if file and (self.server.folder / file[1]).is_file():
            self._send_file(self.server.folder / file[1], with_body=with_body)
        elif re.match(rf"/api/models/{self.server.repo}(/revision/[^/]+)?$", path):
            self._send_json(self._info())
        elif path.startswith(f"/api/models/{self.server.repo}/tree/"):
            self._send_json(self._tree())
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _info(self) -> dict[str, object]:
        files = [{"rfilename": path.name, "size": path.stat().st_size} for path in self.server.folder.iterdir()]
        return {"id": self.server.repo, "sha": COMMIT, "siblings": files, "tags": [], "private": False}

    def _tree(self) -> list[dict[str, object]]:
        files = self.server.folder.iterdir()
        return [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "0" * 40} for p in files]

    def _send_json(self, document: object) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send_file(self, path: Path, *, with_body: bool) -> None:
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        status = 206 if asked else 200
        if asked:
            start, end = int(asked[1]), min(int(asked[2]), len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            content = content[start : end + 1]
        if with_body and path.suffix in WEIGHTS:
            self.server.weight_bytes_sent += len(content)
        self._send(status, content, headers, with_body=with_body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], *, with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)
