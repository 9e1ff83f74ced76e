"""W&B's server on loopback: the GraphQL operations by which its own SDK keeps artifacts, and its uploads."""

import base64
import hashlib
import json
import re
from typing import Any

from tests.fake_server import Answer, Call
from tests.trainer.deploy.fakes.scripted import ScriptedHost

KEY = "0123456789abcdef" * 2 + "01234567"
_OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")
_USER = {"id": "VXNlcjox", "username": "me", "email": "me@desk", "entity": "desk", "flags": "{}", "admin": False}
_USER |= {"name": "me", "defaultEntity": {"name": "desk"}, "teams": {"edges": []}, "apiKeys": {"edges": []}}
_NOW = "2026-11-01T00:00:00"


def change_of(call: Call) -> str | None:
    """What a request changes that stays: an operation or an uploaded file; None for questions and a run's events."""
    if call.path == "/graphql":
        query = call.json["query"].lstrip()
        found = _OPERATION.search(query)
        return found.group(1) if found and query.startswith("mutation") else None
    return call.path if call.path.startswith("/files/QXJ0aWZhY3Q6") else None


class FakeWandb(ScriptedHost):
    def __init__(self) -> None:
        super().__init__()
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.runs: set[str] = set()
        self.files: dict[str, bytes] = {}

    @property
    def committed(self) -> list[dict[str, Any]]:
        return [artifact for artifact in self.artifacts.values() if artifact["state"] == "COMMITTED"]

    def is_authorized(self, call: Call) -> bool:
        sent = call.headers.get("authorization", "").removeprefix("Basic ")
        return base64.b64decode(sent) == f"api:{KEY}".encode()

    def respond(self, call: Call) -> Answer:
        found = _OPERATION.search(call.json["query"]) if call.path == "/graphql" else None
        operation = found.group(1) if found else ""
        return super().respond(Call(call.method, f"{call.path}/{operation}", call.query, call.headers, call.body))

    def answer(self, call: Call) -> Answer:
        path, _, operation = call.path.rpartition("/")
        if path.startswith("/files/"):  # …/put of a file that is uploaded
            self.files[path.removesuffix("/put")] = call.body
            return Answer({})
        if path != "/graphql":
            return Answer({})  # the run's own stream of events
        if not self.is_authorized(call):
            return self.error(401, "user is not logged in")
        try:
            return Answer({"data": self._data(operation, call.json.get("variables") or {})})
        except NotImplementedError as error:
            return self.error(400, f"this stand-in does not know {error}")

    def error(self, status: int, message: str) -> Answer:
        return Answer({"errors": [{"message": message}]}, status)

    def _data(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        given = given.get("input", given)
        match operation:
            case "Viewer":
                return {"viewer": _USER}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "UpsertBucket":
                self.runs.add(given["name"])
                project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": given["entity"]}}
                bucket = {"id": "b", "name": given["name"], "displayName": given["name"], "config": "{}"}
                bucket |= {"description": None, "sweepName": None, "project": project, "historyLineCount": 0}
                return {"upsertBucket": {"bucket": bucket, "inserted": True}}
            case "CreateRunFiles":
                files = [{"name": name, "uploadUrl": f"{self.url}/files/run/{name}/put"} for name in given["files"]]
                return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
            case "ArtifactType":
                return {"project": {"artifact": None}}
            case "CreateArtifact":
                return {"createArtifact": {"artifact": self._create(given)}}
            case "CreateArtifactManifest":
                artifact_id = given["artifactID"]
                url = f"{self.url}/files/{artifact_id}/wandb_manifest.json/put"
                file = {"id": "f", "name": "wandb_manifest.json", "displayName": "wandb_manifest.json"}
                file |= {"uploadUrl": url, "uploadHeaders": []}
                return {"createArtifactManifest": {"artifactManifest": {"id": f"m-{artifact_id}", "file": file}}}
            case "CreateArtifactFiles":
                nodes = [{"node": self._file(each)} for each in given["artifactFiles"]]
                return {"createArtifactFiles": {"files": {"edges": nodes}}}
            case "CommitArtifact":
                artifact = self.artifacts[given["artifactID"]]
                self._commit(artifact)
                return {"commitArtifact": {"artifact": {"id": artifact["id"], "digest": artifact["digest"]}}}
            case "ArtifactMembershipByName":
                return {"project": {"artifactCollectionMembership": self._membership(given)}}
            case "ArtifactByID":
                return {"artifact": self._artifact(self.artifacts[given["id"]])}
            case "DeleteArtifact":
                del self.artifacts[given["artifactID"]]
                return {"deleteArtifact": {"artifact": {"id": given["artifactID"]}, "success": True}}
            case _:
                raise NotImplementedError(f"{operation} of {given}")

    def _create(self, given: dict[str, Any]) -> dict[str, Any]:
        """The same digest in a collection is the same artifact."""
        wanted = given["artifactCollectionName"], given["digest"]
        known = [each for each in self.artifacts.values() if (each["name"], each["digest"]) == wanted]
        if known:
            artifact = known[0]
        else:
            number = f"QXJ0aWZhY3Q6{len(self.artifacts)}"
            artifact = {"id": number, "state": "PENDING", "digest": given["digest"], "metadata": given["metadata"]}
            artifact |= {"name": given["artifactCollectionName"], "type": given["artifactTypeName"], "aliases": []}
            artifact |= {"project": given["projectName"], "entity": given["entityName"], "sent": [], "index": None}
            self.artifacts[number] = artifact
        artifact["aliases"] = [alias["alias"] for alias in given["aliases"] if alias["alias"] != "latest"]
        if artifact["index"] is not None:
            self._commit(artifact)  # what is there already is the newest again
        sequence = {"artifactSequence": {"id": "s", "latestArtifact": None}}
        return {name: artifact[name] for name in ("id", "state", "digest")} | sequence

    def _commit(self, artifact: dict[str, Any]) -> None:
        artifact |= {"state": "COMMITTED", "index": 0}
        artifact["aliases"].append("latest")

    def _file(self, given: dict[str, Any]) -> dict[str, Any]:
        artifact, name = self.artifacts[given["artifactID"]], given["name"]
        artifact["sent"].append(name)
        path = f"/files/{artifact['id']}/{name}"
        url = None if path in self.files else f"{self.url}{path}/put"
        file = {"id": hashlib.md5(path.encode()).hexdigest(), "name": name, "displayName": name, "uploadUrl": url}
        file |= {"uploadHeaders": [], "uploadMultipartUrls": None, "artifact": {"id": artifact["id"]}}
        return file | {"storagePath": f"wandb_artifacts/{artifact['id']}/{name}"}

    def _membership(self, given: dict[str, Any]) -> dict[str, Any] | None:
        collection, _, alias = given["name"].partition(":")
        for artifact in self.committed:
            place = artifact["entity"], artifact["project"], artifact["name"]
            names = f"v{artifact['index']}", *artifact["aliases"]
            if place == (given["entity"], given["project"], collection) and alias in names:
                found = {"id": f"member-{artifact['id']}", "versionIndex": artifact["index"], "createdAt": _NOW}
                found |= {"aliases": [{"id": each, "alias": each} for each in artifact["aliases"]]}
                return found | {"artifactCollection": _collection(artifact), "artifact": self._artifact(artifact)}
        return None

    def _artifact(self, artifact: dict[str, Any]) -> dict[str, Any]:
        found = {name: artifact[name] for name in ("id", "metadata", "state", "digest")}
        found |= {"artifactSequence": _collection(artifact), "artifactType": {"name": artifact["type"]}}
        found |= {"versionIndex": artifact["index"], "size": 1, "fileCount": len(artifact["sent"]), "commitHash": "c"}
        found |= {"createdAt": _NOW, "ttlDurationSeconds": -1, "ttlIsInherited": True, "tags": []}
        return found | dict.fromkeys(("description", "historyStep", "updatedAt"))


def _collection(artifact: dict[str, Any]) -> dict[str, Any]:
    project = {"id": "p", "internalId": "cA==", "name": artifact["project"], "entity": {"name": artifact["entity"]}}
    return {"__typename": "ArtifactSequence", "name": artifact["name"], "project": project}


def manifest_of(fake: FakeWandb, artifact: dict[str, Any]) -> dict[str, Any]:
    return json.loads(fake.files[f"/files/{artifact['id']}/wandb_manifest.json"])["contents"]
