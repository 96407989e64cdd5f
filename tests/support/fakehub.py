"""A hub of one repository, on a port of this machine: as much of its interface as fetching a snapshot needs."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = hashlib.sha1(b"commit").hexdigest()


def handler_for(repository: str, files: dict[str, bytes], asked: list[str]) -> type[BaseHTTPRequestHandler]:
    """Make the class that answers; it notes every path that was asked for."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = self.path.split("?")[0]
            asked.append(path)
            api, files_at = f"/api/models/{repository}", f"/{repository}/resolve/{COMMIT}/"
            if path in (f"{api}/revision/main", f"{api}/revision/v1", api):
                siblings = [{"rfilename": name} for name in files]
                self.send({}, json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode())
            elif path.startswith(f"{api}/revision/"):
                self.send({"X-Error-Code": "RevisionNotFound"}, b"{}", 404)
            elif path == f"{api}/tree/{COMMIT}":
                tree = [{"type": "file", "path": name, "size": len(content)} for name, content in files.items()]
                found = [entry | {"oid": self.etag(files[str(entry["path"])])} for entry in tree]
                self.send({}, json.dumps(found).encode())
            elif path.startswith(files_at) and path.removeprefix(files_at) in files:
                content = files[path.removeprefix(files_at)]
                self.send({"ETag": f'"{self.etag(content)}"', "X-Repo-Commit": COMMIT}, content)
            else:
                self.send({"X-Error-Code": "RepoNotFound"}, b"{}", 404)

        @staticmethod
        def etag(content: bytes) -> str:
            return hashlib.sha1(content).hexdigest()

        def send(self, headers: dict[str, str], content: bytes, status: int = 200) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Stay silent."""

    return Handler


@contextmanager
def fake_hub(repository: str, files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve a repository; yields the hub's address and the paths asked for."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(repository, files, asked))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
