import asyncio
import json

import gavel

RUBRIC = """The returns desk refunds orders of at most 30 days, and only after it has looked the order up:
- calls get_order before refund or deny
- calls refund when days <= 30
- calls deny when days > 30
- ends with a message to the customer
"""
RESULTS = {"get_order": {"days": 45}, "refund": {"done": "refunded"}, "deny": {"done": "denied"}}


def attempt(*tools: str, answer: str) -> gavel.Trajectory:
    messages: list = [{"role": "user", "content": "I want my money back for order 7890."}]
    for tool in tools:
        call = {"id": tool, "type": "function", "function": {"name": tool, "arguments": '{"id": "7890"}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": tool, "content": json.dumps(RESULTS[tool])})
    messages.append({"role": "assistant", "content": answer})
    return gavel.Trajectory(messages_and_choices=messages)


async def main() -> None:
    attempts = [
        attempt("get_order", "deny", answer="Order 7890 is 45 days old, so I cannot refund it."),
        attempt("get_order", "refund", answer="You have your money back."),
        attempt("refund", answer="You have your money back."),
    ]
    # The stand-in checks the rules above and needs no key; any LiteLLM model judges freely: "openai/gpt-5-mini".
    judge = gavel.Judge("stand-in", rubric=RUBRIC, orders=4)
    judged = await judge.score(gavel.TrajectoryGroup(attempts))
    for trajectory in judged.trajectories:
        print(trajectory.reward, "±", trajectory.judgement.standard_error, trajectory.judgement.explanation)


asyncio.run(main())
