"""Groups with all that a trajectory may hold, and with what hostile ones hold."""

import math
from typing import Any

from gavel.scenarios.formats.exported import StoredGroup
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement, Vote
from gavel.scenarios.trajectory import History, Trajectory

PIXEL = "data:image/png;base64,iVBORw0KGgo="
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_order",
            "description": "Look up an order.",
            "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        },
    }
]


def call(arguments: str = '{"id": "A1"}', id: str | None = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "get_order", "arguments": arguments}}


def sampled(
    text: str,
    calls: list[dict[str, Any]] | None = None,
    *,
    prompt: list[int] | None = None,
    ids: list[int] | None = None,
    logprobs: list[float] | None = None,
    finish: str = "stop",
) -> dict[str, Any]:
    """A turn as Gavel's endpoint gives it."""
    content = [
        {"token": f"t{n}", "logprob": lp, "top_logprobs": []} for n, lp in zip(ids or (), logprobs or (), strict=False)
    ]
    return {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})},
        "logprobs": {"content": content, "refusal": None} if logprobs else None,
        **({"token_ids": ids, "prompt_token_ids": prompt, "policy_version": 3} if ids else {}),
    }


def whole() -> Trajectory:
    """Two turns, a tool, an image, tokens, a score, and a sub-agent."""
    return Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "You run the desk."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "See this."}, {"type": "image_url", "image_url": {"url": PIXEL}}],
            },
            sampled("", [call()], prompt=[1, 2, 3], ids=[4, 5], logprobs=[-0.1, -0.2], finish="tool_calls"),
            {"role": "tool", "tool_call_id": "c1", "content": "order A1"},
            sampled("Done.", prompt=[1, 2, 3, 4, 5, 6], ids=[7], logprobs=[-0.3]),
        ],
        tools=TOOLS,
        reward=0.75,
        metrics={"success": True, "turns": 2},
        metadata={"task_id": 7},
        logs=["looked up A1"],
        judgement=Judgement(
            score=0.75, explanation="Cites the order.", votes=[Vote(score=0.75, position=0, order=0, model="m")]
        ),
        additional_histories=[
            History(
                agent="searcher",
                messages_and_choices=[
                    {"role": "user", "content": "Find it."},
                    sampled("Found.", prompt=[9], ids=[8], logprobs=[-0.4]),
                ],
            )
        ],
        agent="clerk",
        policy_version=3,
    )


def hostile(text: str = "order") -> Trajectory:
    """NUL, lone surrogates, NaN, arguments that are no JSON, parts and roles that no format knows."""
    return Trajectory(
        messages_and_choices=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "name": "bob", "content": "\ud800 hi \x00"},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call("not json", None)]},
            {"role": "tool", "content": text, "tool_call_id": "nobody"},
            {
                "role": "user",
                "content": [
                    {"type": "video", "url": "v.mp4"},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                ],
            },
            sampled("é", [call('{"a":' + "[" * 500 + "]" * 500 + "}")]),
        ],
        reward=math.nan,
        metrics={"share": math.inf},
        metadata={"\udc01": ["x", math.nan]},
        status="failed",
        status_reason="boom \udfff",
    )


def stored(*trajectories: Trajectory, **fields: Any) -> list[StoredGroup]:
    """One group, as it is read from a run."""
    group = TrajectoryGroup(trajectories, metadata={"task_id": 7}, **fields)
    return [StoredGroup(group, 0, "train", 12)]


def both() -> list[StoredGroup]:
    """An attempt of each kind, and a member that raised."""
    judgement = GroupJudgement(status="partial", calls=2)
    return stored(whole(), hostile(), exceptions=[ValueError("lost")], judgement=judgement)
