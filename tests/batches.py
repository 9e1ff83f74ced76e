"""OpenAI's Files and Batches API on loopback, as published, with a script of what the model answers and what fails.

A batch is validated, runs, is finalized and ends; every look at it moves it one state on. Each line of its input is
answered as the chat endpoint would answer its body: status 200 goes to the output file, all else to the error file.
Azure's paths (`/openai/files`, `/openai/batches`) are served too.
"""

import itertools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.parser import BytesParser
from typing import Any

from tests.endpoint import Request, Step, scores
from tests.fake_server import Answer, Call, FakeServer

Json = dict[str, Any]
_COURSE = ["validating", "in_progress", "finalizing", "completed"]


@dataclass
class Batch:
    body: Json
    requests: list[Json] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.body["status"]


class BatchService(FakeServer):
    """The service; `answer` is asked for each request of a batch, `fate` for how a batch ends."""

    def __init__(self) -> None:
        self.answer: Step = scores(0.75, 0.25)
        self.fate: Callable[[int], str] = lambda number: "completed"
        """By the batch's number, from 1: completed, failed, expired or cancelled."""
        self.share = 1.0
        """Of the requests of a batch that expires or is cancelled, those that were answered."""
        self.paused = False
        """Whether batches stay as they are."""
        self.failures: list[tuple[str, int]] = []
        """Answers the next request to a path with this status, without carrying it out."""
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Batch] = {}
        self.asked: Counter[str] = Counter()
        """Requests carried out, by custom_id."""
        self.calls: list[str] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        super().__init__()

    @property
    def params(self) -> Json:
        return {"api_base": f"{self.url}/v1", "api_key": "none"}

    @property
    def azure_params(self) -> Json:
        return {"api_base": self.url, "api_key": "none", "api_version": "2025-04-01-preview"}

    def respond(self, call: Call) -> Answer:
        path = re.sub(r"^/(openai/v1|openai|v1)", "", call.path)
        with self._lock:
            self.calls.append(f"{call.method} {path}")
            failure = next((each for each in self.failures if each[0] == f"{call.method} {path}"), None)
            if failure:
                self.failures.remove(failure)
                return _error(failure[1], "try later")
            if call.headers.get("authorization") != "Bearer none" and call.headers.get("api-key") != "none":
                return _error(401, "Incorrect API key provided", "invalid_api_key")
            return self._route(call.method, path, call.query, call.headers.get("content-type", ""), call.body)

    def _route(self, method: str, path: str, query: dict[str, str], kind: str, body: bytes) -> Answer:
        match method, path.strip("/").split("/"):
            case "POST", ["files"]:
                return self._upload(kind, body)
            case "GET", ["files", name, "content"] if name in self.files:
                return Answer(self.files[name])
            case "POST", ["batches"]:
                return self._create(json.loads(body))
            case "GET", ["batches"]:
                return self._list(query)
            case "GET", ["batches", name] if name in self.batches:
                self._move(name)
                return Answer(self.batches[name].body)
            case _:
                return _error(404, f"No such object: {path}")

    def _upload(self, kind: str, body: bytes) -> Answer:
        parts = BytesParser().parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body).get_payload()
        fields = {part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in parts}
        assert fields["purpose"] == b"batch"
        return Answer(self._file(fields["file"], "batch"))

    def _file(self, content: bytes, purpose: str) -> Json:
        name = f"file-{next(self._numbers)}"
        self.files[name] = content
        about = {"id": name, "object": "file", "filename": "batch.jsonl", "purpose": purpose, "status": "processed"}
        return {**about, "bytes": len(content), "created_at": int(time.time())}

    def _create(self, wanted: Json) -> Answer:
        if wanted["input_file_id"] not in self.files:
            return _error(400, "Invalid input_file_id")
        assert wanted["endpoint"] in ("/v1/chat/completions", "/chat/completions")
        assert wanted["completion_window"] == "24h"
        name = f"batch_{len(self.batches) + 1}"
        none = ["errors", "output_file_id", "error_file_id", "in_progress_at", "finalizing_at", "completed_at"]
        now, counts = int(time.time()), {"total": 0, "completed": 0, "failed": 0}
        about = {"id": name, "object": "batch", "status": "validating", "request_counts": counts}
        body = {**about, "created_at": now, "expires_at": now + 86400, **dict.fromkeys([*none, "metadata"]), **wanted}
        self.batches[name] = Batch(body)
        return Answer(body)

    def _list(self, query: dict[str, str]) -> Answer:
        page = [batch.body for batch in self.batches.values()][::-1][: int(query.get("limit", 20))]
        return Answer({"object": "list", "data": page, "has_more": len(page) < len(self.batches)})

    def _move(self, name: str) -> None:
        batch = self.batches[name]
        if self.paused or batch.status not in _COURSE[:-1]:
            return
        if batch.status == "validating":
            batch.requests = [json.loads(line) for line in self.files[batch.body["input_file_id"]].splitlines()]
            if errors := self._mistakes(batch.requests, int(name.partition("_")[2])):
                batch.body |= {"status": "failed", "errors": {"object": "list", "data": errors}}
                return
            batch.body["request_counts"]["total"] = len(batch.requests)
        batch.body["status"] = _COURSE[_COURSE.index(batch.status) + 1]
        if batch.status == "completed":
            self._finish(batch, self.fate(int(name.partition("_")[2])))

    def _mistakes(self, requests: list[Json], number: int) -> list[Json]:
        if self.fate(number) == "failed":
            return [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached.", "line": None}]
        counts = Counter(request["custom_id"] for request in requests)
        doubled = [name for name, count in counts.items() if count > 1]
        models = {request["body"]["model"] for request in requests}
        assert all(request.keys() == {"custom_id", "method", "url", "body"} for request in requests)
        found = [{"code": "duplicate_custom_id", "message": f"{name} twice", "line": 1} for name in doubled]
        if len(models) != 1:
            found.append({"code": "mismatched_model", "message": "The models differ.", "line": 2})
        return found

    def _finish(self, batch: Batch, fate: str) -> None:
        answered = len(batch.requests) if fate == "completed" else int(self.share * len(batch.requests))
        lines: dict[bool, list[str]] = {True: [], False: []}
        for number, request in enumerate(batch.requests):
            line: Json = {"id": f"batch_req_{number}", "custom_id": request["custom_id"], "response": None}
            if number < answered:
                self.asked[request["custom_id"]] += 1
                answer = self.answer(request["body"])
                response = {"status_code": answer.status, "request_id": f"r{number}", "body": answer.body}
                line |= {"response": response, "error": None}
            else:
                words = "This request could not be executed before the completion window expired."
                line["error"] = {"code": f"batch_{fate}", "message": words}
            lines[number < answered and line["response"]["status_code"] == 200].append(json.dumps(line))
        for name, good in (("output_file_id", True), ("error_file_id", False)):
            if lines[good]:
                content = "".join(f"{line}\n" for line in reversed(lines[good])).encode()
                batch.body[name] = self._file(content, "batch_output")["id"]
        batch.body["request_counts"] |= {"completed": len(lines[True]), "failed": len(lines[False])}
        batch.body["status"] = fate


def _error(status: int, message: str, code: str | None = None) -> Answer:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return Answer(body, status, {"Retry-After": "0"})


def refuses(status: int, message: str) -> Step:
    """An answer of the model that is an error."""

    def step(request: Request) -> Answer:
        return Answer({"error": {"message": message, "type": "invalid_request_error", "code": None}}, status)

    return step
