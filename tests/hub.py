"""A stand-in for the Hub: its HTTP interface as far as a push needs it, on a port of this machine."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

OWNER, TOKEN = "ann", "x"


@dataclass
class Hub:
    """What there is on it, by repository; one account, `OWNER`, with one token, `TOKEN`."""

    endpoint: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)  # that were there before
    refused: str = "\0"  # requests whose path holds this
    requests: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)


@contextmanager
def stand_in() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        body = self._body()
        path = self.path.split("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        is_upload = path.startswith("/blobs/")  # goes to a storage with an address of its own
        if not is_upload and self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._send(401, {"error": "Invalid username or password."})
        elif self.hub.refused in path:
            self._send(403, {"error": "Forbidden: the storage is full."})
        else:
            self._send(*self._do(path, body))

    do_GET = do_POST = do_PUT = _answer

    def _do(self, path: str, body: bytes) -> tuple[int, Any]:
        hub = self.hub
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            header = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            return 200, {"errors": [], "warnings": [] if header else [{"message": "empty"}]}
        if path.startswith("/blobs/"):
            oid = path.rsplit("/", 1)[1]
            if hashlib.sha256(body).hexdigest() != oid:
                return 400, {"error": "other bytes than were announced"}
            hub.blobs[oid] = body
            return 200, {}
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**item, "actions": {"upload": {"href": f"{hub.endpoint}/blobs/{item['oid']}"}}}
                for item in json.loads(body)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}
        _, api, kind, owner, name, *rest = path.split("/")
        repository = f"{owner}/{name}"
        if (api, kind) != ("api", "models"):
            return 404, {"error": "no such page"}
        if repository not in hub.files and repository not in hub.models:
            return 404, {"error": "Repository not found"}
        if rest == ["auth-check", "write"]:
            return (200, {}) if owner == OWNER else (403, {"error": "Forbidden"})
        if rest[:1] == ["preupload"]:
            return 200, {"files": [_mode(item["path"]) for item in json.loads(body)["files"]]}
        if rest[:1] == ["commit"]:
            return self._commit(repository, body)
        return 200, {"id": repository, "sha": "0" * 40, **hub.models.get(repository, {})}

    def _create(self, given: dict[str, Any]) -> tuple[int, Any]:
        owner = given["organization"] or OWNER
        repository = f"{owner}/{given['name']}"
        if owner != OWNER:
            return 403, {"error": "You don't have the rights to create a model here"}
        status = 409 if repository in self.hub.files else 200
        self.hub.files.setdefault(repository, {})
        return status, {"url": f"{self.hub.endpoint}/{repository}"}

    def _commit(self, repository: str, body: bytes) -> tuple[int, Any]:
        files = self.hub.files[repository]
        for item in map(json.loads, body.splitlines()):
            value = item["value"]
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
        url = f"{self.hub.endpoint}/{repository}/commit/{'0' * 40}"
        return 200, {"success": True, "commitUrl": url, "commitOid": "0" * 40}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, content: Any) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _mode(path: str) -> dict[str, Any]:
    mode = "lfs" if path.endswith(".safetensors") else "regular"
    return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": None}
