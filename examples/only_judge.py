import asyncio

import gavel

RUBRIC = "- calls look_up_order before refund.\n- ends with a message."


def attempt(*calls: str, answer: str) -> gavel.Trajectory:
    messages = [{"role": "user", "content": "I want my money back for order 1001."}]
    for name in calls:
        call = {"id": name, "type": "function", "function": {"name": name, "arguments": '{"order_id": "1001"}'}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": name, "content": "a lamp, 45 EUR"})
    return gavel.Trajectory(messages_and_choices=[*messages, {"role": "assistant", "content": answer}])


async def main() -> None:
    careful = attempt("look_up_order", "refund", answer="45 EUR are on their way.")
    hasty = attempt("refund", answer="45 EUR are on their way.")
    judge = gavel.Judge("stand-in", rubric=RUBRIC, orders=4)  # or a language model: "openai/gpt-5-mini"
    judged = await judge.score(gavel.TrajectoryGroup([careful, hasty]))
    for trajectory in judged.trajectories:
        print(trajectory.reward, "±", trajectory.judgement.standard_error, trajectory.judgement.explanation)


asyncio.run(main())
