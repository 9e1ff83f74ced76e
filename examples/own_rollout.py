import asyncio

import gavel

RUBRIC = "- calls look_up_order with order_id from the request\n- ends with a message to the customer"
ORDERS = {"1001": "a lamp, arrives on Monday", "1002": "a tent, lost on the way", "1003": "boots, delivered"}


def look_up_order(order_id: str) -> str:
    """Look up an order."""
    return ORDERS[order_id]


TOOLS = gavel.Toolbox([look_up_order])


async def rollout(model: gavel.Model, question: str) -> gavel.Trajectory:
    trajectory = gavel.Trajectory(messages_and_choices=[{"role": "user", "content": question}], tools=TOOLS.schemas)
    calls, create = True, model.openai_client().chat.completions.create
    while calls and len(trajectory.messages_and_choices) < 8:
        name, messages = model.get_inference_name(), trajectory.messages()
        reply = await create(model=name, messages=messages, tools=TOOLS.schemas, max_completion_tokens=64)
        calls = reply.choices[0].message.tool_calls or []
        trajectory.messages_and_choices.append(reply.choices[0])
        trajectory.messages_and_choices += [await TOOLS.answer(call) for call in calls]
    return trajectory


async def main() -> None:
    model = gavel.TrainableModel(name="clerk-1", project="orders", base_model="embedded/returns-desk")
    await model.register(gavel.LocalBackend())
    for _ in range(await model.get_step(), 3):
        groups = await gavel.gather_trajectory_groups(
            (gavel.TrajectoryGroup(rollout(model, f"Where is order {order}?") for _ in range(6)) for order in ORDERS),
            after_each=lambda group: gavel.ruler_score_group(group, "stand-in", rubric=RUBRIC),
        )
        result = await model.train(groups, gavel.TrainConfig(learning_rate=1e-3))
        print(f"step {result.step}: mean score {result.metrics['reward']:.2f}")


asyncio.run(main())
