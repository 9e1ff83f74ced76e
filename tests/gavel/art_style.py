"""A training script in the shape that users of ART write; only its imports are Gavel's."""

import asyncio

import gavel as art
from gavel import ruler_score_group
from gavel.local import LocalBackend


async def rollout(model: art.Model, question: str) -> art.Trajectory:
    client = model.openai_client()
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "You answer questions about our orders."},
            {"role": "user", "content": question},
        ],
        reward=0.0,
        metrics={"questions": 1},
        metadata={"question": question},
    )
    completion = await client.chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_completion_tokens=24, timeout=100
    )
    choice = completion.choices[0]
    trajectory.messages_and_choices.append(choice)
    trajectory.metrics["length"] = len(choice.message.content or "")
    trajectory.log("answered")
    return trajectory.finish()


async def main() -> None:
    model = art.TrainableModel(name="agent-001", project="art-style", base_model="embedded/returns-desk")
    backend = LocalBackend(path="./.art")
    await model.register(backend)
    for _ in range(await model.get_step(), 2):
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(rollout(model, question) for _ in range(4))
                for question in ("Where is order 1001?", "Refund order 1002!")
            ),
            pbar_desc="gather",
            max_exceptions=4,
            after_each=lambda group: ruler_score_group(group, "stand-in", swallow_exceptions=True),
        )
        validation = await art.gather_trajectories(
            (rollout(model, "Where is order 9?") for _ in range(2)), pbar_desc="val"
        )
        await model.log(validation, split="val")
        await model.delete_checkpoints()
        await model.train(groups, config=art.TrainConfig(learning_rate=1e-4))
        print([trajectory.reward for group in groups for trajectory in group.trajectories])
    print("steps:", await model.get_step())


if __name__ == "__main__":
    asyncio.run(main())
