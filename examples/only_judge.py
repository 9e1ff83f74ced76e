import asyncio

import gavel

QUESTION = {"role": "user", "content": "What is the capital of Australia?"}
ANSWERS = ["Canberra.", "Sydney, I think.", ""]


async def main() -> None:
    attempts = [
        gavel.Trajectory(messages_and_choices=[QUESTION, {"role": "assistant", "content": answer}])
        for answer in ANSWERS
    ]
    judge = gavel.Judge("stand-in", rubric="Prefer answers that are right and certain.", orders=4)
    judged = await judge.score(gavel.TrajectoryGroup(attempts))
    for trajectory in judged.trajectories:
        print(trajectory.reward, "±", trajectory.judgement.standard_error, trajectory.judgement.explanation)


asyncio.run(main())
