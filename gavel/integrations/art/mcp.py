"""Scenarios for the tools of an MCP server, drafted by a model."""

import json
import os
import random
from collections import Counter, UserList
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Self, cast

from pydantic import AliasChoices, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from gavel.integrations.art.errors import add_aliases
from gavel.judge.drafts import DraftError
from gavel.judge.task_drafts import write_batch
from gavel.llm.client import Client

add_aliases(__name__, "types", "default_tools", "generate_scenarios")


class _Record:
    """A record that is made from a dict, and gives one."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Fields by their names, as in Python or as servers write them."""
        return TypeAdapter(cls).validate_python(dict(data))

    def to_dict(self) -> dict[str, Any]:
        return TypeAdapter(type(self)).dump_python(self, by_alias=True, exclude_none=True)


@dataclass
class MCPTool(_Record):
    """A tool: its parameters are a JSON schema."""

    name: str = ""
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_tool_schema(self) -> dict[str, Any]:
        """The tool in the form of a request's `tools`."""
        return {"type": "function", "function": self.to_dict()}


@dataclass
class MCPResource(_Record):
    """A resource that a server lets its clients read."""

    uri: str = ""
    name: str = ""
    description: str = ""
    mime_type: str | None = Field(
        default=None, validation_alias=AliasChoices("mimeType", "mime_type"), serialization_alias="mimeType"
    )


@dataclass
class GeneratedScenario(_Record):
    """A task for an agent, with difficulty 1 (easy) to 5. Raises `ValueError` for another difficulty."""

    task: str
    difficulty: int = Field(strict=True, ge=1, le=5)

    def preview(self, max_length: int = 120) -> str:
        return self.task if len(self.task) <= max_length else f"{self.task[:max_length].strip()}…"


class GeneratedScenarioCollection(UserList[GeneratedScenario]):
    """An ordered list of scenarios."""

    @property
    def scenarios(self) -> list[GeneratedScenario]:
        return self.data

    @classmethod
    def from_dicts(cls, data: Iterable[Mapping[str, Any]]) -> Self:
        return cls(map(GeneratedScenario.from_dict, data))

    @classmethod
    def from_json(cls, json_str: str) -> Self:
        """Parses a list, or an object with `scenarios`."""
        data: Any = json.loads(json_str)
        return cls.from_dicts(cast("dict[str, Any]", data)["scenarios"] if isinstance(data, dict) else data)

    def to_dicts(self) -> list[dict[str, Any]]:
        return [scenario.to_dict() for scenario in self]

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps({"scenarios": self.to_dicts()}, indent=indent)

    def shuffle(self) -> Self:
        """A shuffled copy."""
        return type(self)(random.sample(self.data, len(self)))

    def split(self, train_size: int) -> tuple[Self, Self]:
        """The first `train_size`, and the rest. Raises `ValueError` if there are fewer."""
        if train_size > len(self):
            raise ValueError(f"train_size is {train_size}, but there are {len(self)} scenarios")
        return self[:train_size], self[train_size:]

    def filter_by_difficulty(self, min_difficulty: int = 1, max_difficulty: int = 5) -> Self:
        return type(self)(each for each in self if min_difficulty <= each.difficulty <= max_difficulty)

    def get_difficulty_distribution(self) -> Counter[int]:
        return Counter(scenario.difficulty for scenario in self)

    def get_summary(self) -> dict[str, Any]:
        count = max(1, len(self))
        return {
            "total_scenarios": len(self),
            "difficulty_distribution": dict(self.get_difficulty_distribution()),
            "avg_difficulty": sum(scenario.difficulty for scenario in self) / count,
            "avg_task_length": sum(len(scenario.task) for scenario in self) / count,
        }

    def preview(self, n: int = 5, max_task_length: int = 120) -> None:
        """Prints the first `n` scenarios."""
        for number, scenario in enumerate(self[:n], start=1):
            print(f"  {number}. {scenario.preview(max_task_length)} (difficulty {scenario.difficulty}/5)")

    def print_difficulty_distribution(self) -> None:
        for difficulty, count in sorted(self.get_difficulty_distribution().items()):
            print(f"  {difficulty}/5: {count:3d}")


complete_task_tool = MCPTool(
    name="complete_task",
    description="Ends the task",
    parameters={
        "type": "object",
        "properties": {"summary": {"type": "string", "description": "What was accomplished"}},
        "required": ["summary"],
    },
)
"""The tool with which an agent reports completion."""


_TOKENS_PER_SCENARIO = 400


async def generate_scenarios(
    tools: Sequence[MCPTool | Mapping[str, Any]],
    resources: Sequence[MCPResource | Mapping[str, Any]] | None = None,
    num_scenarios: int = 24,
    show_preview: bool = True,
    custom_instructions: str | None = None,
    generator_model: str = "openai/gpt-4.1-mini",
    generator_api_key: str | None = None,
    generator_base_url: str = "https://openrouter.ai/api/v1",
) -> GeneratedScenarioCollection:
    """Drafts exactly `num_scenarios` tasks of graded difficulty. The key is by default that of OPENROUTER_API_KEY.

    Raises `ValueError` without a key, without tools and resources, and for a reply with another number of tasks.
    """
    key = generator_api_key or os.environ.get("OPENROUTER_API_KEY")
    if not key:
        raise ValueError("there is no key for the model: pass generator_api_key, or set OPENROUTER_API_KEY")
    if not tools and not resources:
        raise ValueError("there are neither tools nor resources to make scenarios for")
    known = [each if isinstance(each, Mapping) else each.to_dict() for each in (*tools, *(resources or ()))]
    material = {
        "tools": json.dumps(known[: len(tools)], indent=1),
        "resources": json.dumps(known[len(tools) :], indent=1) if resources else "",
    }
    most = max(8000, _TOKENS_PER_SCENARIO * num_scenarios)
    params = {"api_base": generator_base_url, "api_key": key, "max_completion_tokens": most}
    client = Client(f"openai/{generator_model}", params)  # the server of any model speaks OpenAI's protocol
    try:
        tasks, _ = await write_batch(
            client, num_scenarios, material, criteria=False, instructions=custom_instructions or "", exact=True
        )
    except DraftError as error:
        raise ValueError(error.message) from error
    scenarios = GeneratedScenarioCollection(GeneratedScenario(task.user, task.difficulty) for task in tasks)
    if show_preview:
        scenarios.print_difficulty_distribution()
        scenarios.preview()
    return scenarios
