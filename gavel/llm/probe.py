"""One cheap question to a model, before the first that matters."""

from dataclasses import dataclass

from gavel.llm.types import Message, Schema

MESSAGES: list[Message] = [
    {"role": "system", "content": "You answer in JSON."},
    {"role": "user", "content": 'Are you there? Reply with the JSON object {"ready": true} and nothing else.'},
]
SCHEMA: Schema = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Probe:
    """What the question showed."""

    model: str
    served_by: str
    """The model's name according to the server, or ""."""
    reply_format: str
    """How replies are asked for from then on: "json_schema", "json_object" or "text"."""
    seconds: float
    cost_usd: float | None
    """None = unknown."""
    problem: str = ""
    """Why the model cannot be asked; it is a fallback of a juror that can."""
