"""How schemathesis sends a batch: each generated body is a line."""

import json
from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def ndjson(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"
