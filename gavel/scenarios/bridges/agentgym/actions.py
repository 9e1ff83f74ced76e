"""The action in a reply of the form ReAct, as the environments of AgentGym read it.

    "Thought: I need planks.\n\nAction: get 1 oak log"  ->  "get 1 oak log"

A reply is data: nothing in it is ever evaluated.
"""

import re

from gavel.scenarios.bridges.agentgym.kinds import Form

_ACTION = re.compile(r"^[^\S\n]*\**Action\**[^\S\n]*:\**[^\S\n]*", re.IGNORECASE | re.MULTILINE)
_INLINE = re.compile(r"\bAction:[^\S\n]*")
"""Behind a thought on the same line."""
_SQL = re.compile(r"```(?:sql)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^```[\w-]*\n(.*?)\n?```$", re.DOTALL)
_NEXT = re.compile(r"^\s*(?:Thought|Observation)\s*:", re.IGNORECASE | re.MULTILINE)
_END = "</s>"


def action_of(reply: str, form: Form) -> str | None:
    """What is sent to the environment; None for a reply without an action, or with several.

    Text after the action that plays the environment's part (`Observation: …`) is cut off.
    """
    said = reply.strip().removesuffix(_END).strip()
    if form == "reply":
        return said or None
    marks = list(_ACTION.finditer(said)) or list(_INLINE.finditer(said))
    if form == "sql":
        fences = _SQL.findall(said[marks[-1].end() :] if marks else said)
        return (fences[-1].strip() or None) if fences else _after(said, marks)
    action = _after(said, marks)
    if form == "call" and action is not None:
        return f"Action: {action}"
    return action


def sent(action: str, form: Form) -> str:
    """An action that came as a tool's argument, in the form that the environment reads."""
    action = action.strip()
    if form == "call":
        return f"Action: {_ACTION.sub('', action, count=1)}"
    return action_of(action, "sql") or action if form == "sql" and "```" in action else action


def _after(said: str, marks: list[re.Match[str]]) -> str | None:
    if len(marks) != 1:
        return None
    action = said[marks[0].end() :]
    if (further := _NEXT.search(action)) is not None:
        action = action[: further.start()]
    action = action.strip()
    fenced = _FENCE.match(action)
    return (fenced[1].strip() if fenced else action) or None
