"""A Hugging Face Hub on loopback: what `huggingface_hub` uses of its interface for files of models."""

import base64
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import parse_qs, unquote

from tests.fake_server import Answer, Call, FakeServer

TOKEN = "hf_of_the_tests"
_LARGE = (".safetensors", ".pt", ".bin", ".gguf")


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    commits: int = 0

    @property
    def commit(self) -> str:
        return hashlib.sha1(str(self.commits).encode()).hexdigest()


class FakeHub(FakeServer):
    """Repositories by name; `failing` answers the next requests whose path contains a text with a status."""

    def __init__(self) -> None:
        super().__init__()
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        """Large files that were uploaded, by hash, in a commit or not."""
        self.uploads: Counter[str] = Counter()
        self.failing: list[tuple[str, int, dict[str, str]]] = []
        self.calls: list[tuple[str, str]] = []

    def respond(self, call: Call) -> Answer:
        path = unquote(call.path)
        self.calls.append((call.method, path))
        for index, (text, status, headers) in enumerate(self.failing):
            if text in path:
                del self.failing[index]
                return Answer({"error": "as the test asked for"}, status, headers)
        if path.startswith("/objects/"):
            return self._upload(path.rpartition("/")[2], call.body)
        if call.headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer({"error": "Invalid username or password."}, 401)
        if path == "/api/repos/create":
            return self._create(call.json)
        if path == "/api/repos/delete":
            name = f"{call.json.get('organization') or 'me'}/{call.json['name']}"
            if self.repositories.pop(name, None) is None:
                return Answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return Answer({})
        if path == "/api/validate-yaml":
            return Answer({"errors": [], "warnings": []})
        parts = path.strip("/").split("/")
        if parts[0] == "api" and parts[1] == "models":
            name, action, rest = "/".join(parts[2:4]), parts[4] if len(parts) > 4 else "", parts[5:]
        else:
            name, action, rest = "/".join(parts[:2]).removesuffix(".git"), parts[2], parts[3:]
        repository = self.repositories.get(name)
        if repository is None:
            return Answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        match action:
            case "preupload":
                paths = [file["path"] for file in call.json["files"]]
                about = [(path, _mode(path), _oid(path, repository.files.get(path))) for path in paths]
                keys = ("path", "uploadMode", "oid", "shouldIgnore")
                return Answer({"files": [dict(zip(keys, (*each, False), strict=True)) for each in about]})
            case "info":
                return self._batch(call.json)
            case "commit":
                return self._commit(name, repository, call.body)
            case "tree":
                return self._tree(repository, "/".join(rest[1:]))
            case "paths-info":
                return self._paths(repository, call)
            case "resolve":
                return self._file(call, repository, "/".join(rest[1:]))
            case _:
                return Answer({"id": name, "sha": repository.commit, "private": repository.private})

    def _create(self, given: dict[str, str | bool]) -> Answer:
        name = f"{given.get('organization') or 'me'}/{given['name']}"
        url = {"url": f"{self.url}/{name}", "name": name}
        if name in self.repositories:
            return Answer({"error": "You already created this model repo", **url}, 409)
        private = bool(given.get("private")) or given.get("visibility") == "private"
        self.repositories[name] = Repository(private)
        return Answer(url)

    def _batch(self, given: dict[str, list[dict[str, str]]]) -> Answer:
        """git-lfs: no `actions` for what is there."""
        objects = list[dict[str, object]]()
        for each in given["objects"]:
            upload = {"actions": {"upload": {"href": f"{self.url}/objects/{each['oid']}", "header": {}}}}
            objects.append(dict(each) if each["oid"] in self.objects else {**each, **upload})
        return Answer({"transfer": "basic", "objects": objects})

    def _upload(self, oid: str, content: bytes) -> Answer:
        if hashlib.sha256(content).hexdigest() != oid:
            return Answer({"error": "hash mismatch"}, 400)
        self.objects[oid] = content
        self.uploads[oid] += 1
        return Answer({})

    def _commit(self, name: str, repository: Repository, body: bytes) -> Answer:
        files = dict(repository.files)
        for line in body.splitlines():
            given = json.loads(line)
            value = given["value"]
            match given["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    if value["oid"] not in self.objects:
                        return Answer({"error": f"LFS pointer to a file that was not uploaded: {value['path']}"}, 400)
                    files[value["path"]] = self.objects[value["oid"]]
                case "deletedFile":
                    if value["path"] not in files:
                        return Answer({"error": "A file with this name doesn't exist"}, 404)
                    del files[value["path"]]
                case _:
                    pass
        repository.files, repository.commits = files, repository.commits + 1
        url = f"{self.url}/{name}/commit/{repository.commit}"
        return Answer({"success": True, "commitOid": repository.commit, "commitUrl": url})

    def _tree(self, repository: Repository, folder: str) -> Answer:
        found = [name for name in sorted(repository.files) if not folder or name.startswith(f"{folder}/")]
        if folder and not found:
            return Answer({"error": f"{folder} does not exist"}, 404, {"X-Error-Code": "EntryNotFound"})
        return Answer([_entry(name, repository.files[name]) for name in found])

    def _paths(self, repository: Repository, call: Call) -> Answer:
        asked = parse_qs(call.body.decode())["paths"]  # a form
        return Answer([_entry(name, repository.files[name]) for name in asked if name in repository.files])

    def _file(self, call: Call, repository: Repository, name: str) -> Answer:
        commit = {"X-Repo-Commit": repository.commit}
        if name not in repository.files:
            return Answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound", **commit})
        content = repository.files[name]
        return Answer(content, headers={"ETag": f'"{hashlib.sha256(content).hexdigest()}"', **commit})


def _mode(path: str) -> str:
    return "lfs" if PurePosixPath(path).suffix in _LARGE else "regular"


def _oid(name: str, content: bytes | None) -> str | None:
    """By which the library knows that a file has not changed."""
    if content is None:
        return None
    return hashlib.sha256(content).hexdigest() if _mode(name) == "lfs" else _blob(content)


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": _blob(content)}
    lfs = {"oid": _oid(name, content), "size": len(content), "pointerSize": 130}
    return entry | ({"lfs": lfs} if _mode(name) == "lfs" else {})
