"""The batch services of Mistral and xAI on loopback, as published: their own paths, fields and states."""

import json

from tests.batches import BatchService, Json
from tests.fake_server import Answer

_MISTRAL_STATES = {
    "validating": "QUEUED",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelled": "CANCELLED",
}


class MistralService(BatchService):
    """A job names its model; its input lines hold a request's id and body, and nothing else."""

    line_fields = frozenset({"custom_id", "body"})

    def _route(self, method: str, path: str, query: dict[str, str], kind: str, body: bytes) -> Answer:
        match method, path.strip("/").split("/"):
            case "POST", ["batch", "jobs"]:
                wanted = json.loads(body)
                assert set(wanted) <= {"input_files", "endpoint", "model", "metadata"}
                file = wanted["input_files"][0]
                assert {json.loads(line)["body"]["model"] for line in self.files[file].splitlines()} == {
                    wanted["model"]
                }
                batch = {"input_file_id": file, "endpoint": wanted["endpoint"], "completion_window": "24h"}
                return Answer(self._job(self._create(batch | {"metadata": wanted.get("metadata")}).body))
            case "GET", ["batch", "jobs", name] if name in self.batches:
                self._move(name)
                return Answer(self._job(self.batches[name].body))
            case _, ["batches", *_]:
                return Answer({"detail": "Not Found"}, 404)
            case _:
                return super()._route(method, path, query, kind, body)

    def _job(self, batch: Json) -> Json:
        counts, errors = batch["request_counts"], (batch["errors"] or {}).get("data", [])
        return {
            "id": batch["id"],
            "object": "batch",
            "input_files": [batch["input_file_id"]],
            "endpoint": batch["endpoint"],
            "metadata": batch["metadata"],
            "status": _MISTRAL_STATES[batch["status"]],
            "created_at": batch["created_at"],
            "total_requests": counts["total"],
            "completed_requests": counts["completed"] + counts["failed"],
            "succeeded_requests": counts["completed"],
            "failed_requests": counts["failed"],
            "output_file": batch["output_file_id"],
            "error_file": batch["error_file_id"],
            "errors": [{"message": error["message"], "count": 1} for error in errors],
        }


class XaiService(BatchService):
    """A batch has counters and no state, a name and no metadata; its results are read in pages, from no file."""

    page = 7
    """Results or batches of a page at most."""

    def _route(self, method: str, path: str, query: dict[str, str], kind: str, body: bytes) -> Answer:
        match method, path.strip("/").split("/"):
            case "POST", ["batches"]:
                wanted = json.loads(body)
                assert set(wanted) == {"name", "input_file_id"}
                batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **wanted}
                return Answer(self._shown(self._create(batch).body))
            case "GET", ["batches"]:
                return self._paged("batches", [self._shown(batch.body) for batch in self.batches.values()][::-1], query)
            case "GET", ["batches", name, "results"] if name in self.batches:
                return self._paged("results", self._results(self.batches[name].body), query)
            case "GET", ["batches", name] if name in self.batches:
                self._move(name)
                return Answer(self._shown(self.batches[name].body))
            case _:
                return super()._route(method, path, query, kind, body)

    def _paged(self, name: str, items: list[Json], query: dict[str, str]) -> Answer:
        start = int(query.get("pagination_token", 0))
        end = start + min(self.page, int(query["limit"]))
        return Answer({name: items[start:end], "pagination_token": str(end) if end < len(items) else None})

    def _shown(self, batch: Json) -> Json:
        counts, status = batch["request_counts"], batch["status"]
        failed = (batch["errors"] or {}).get("data", [])
        over = status in ("completed", "failed", "expired", "cancelled")
        return {
            "batch_id": batch["id"],
            "name": batch["name"],
            "input_file_id": batch["input_file_id"],
            "create_time": "2026-11-22",
            "cancel_time": "2026-11-22" if status in ("cancelled", "failed") else None,
            "cancel_by_xai_message": failed[0]["message"] if failed else None,
            "state": {
                "num_requests": counts["total"],
                "num_pending": 0 if over else counts["total"],
                "num_success": counts["completed"],
                "num_error": counts["failed"],
                "num_cancelled": 0,
            },
        }

    def _results(self, batch: Json) -> list[Json]:
        files = filter(None, (batch["output_file_id"], batch["error_file_id"]))
        lines = [json.loads(line) for file in files for line in self.files[file].splitlines()]
        return [{"batch_request_id": line["custom_id"], "batch_result": _result(line)} for line in lines]


def _result(line: Json) -> Json:
    response = line["response"]
    if response and response["status_code"] == 200:
        return {"response": {"chat_get_completion": response["body"]}}
    error = response["body"]["error"] if response else line["error"]
    return {"error": {"code": 3, "message": error["message"]}}
