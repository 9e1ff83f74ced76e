import asyncio

import gavel


def look_up_order(order_id: str) -> str:
    """Look up an order."""
    return f"order {order_id} arrives on Monday"


TOOLS = gavel.Toolbox([look_up_order])


def demonstration(order: str) -> gavel.Trajectory:
    call = {"name": "look_up_order", "arguments": f'{{"order_id": "{order}"}}'}
    messages = [
        {"role": "user", "content": f"Where is order {order}?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "1", "content": look_up_order(order)},
        {"role": "assistant", "content": "It arrives on Monday."},
    ]
    return gavel.Trajectory(messages_and_choices=messages, tools=TOOLS.schemas)


async def main() -> None:
    model = gavel.TrainableModel(name="pupil-1", project="orders", base_model="embedded/returns-desk")
    await model.register(gavel.LocalBackend())
    demonstrations = [demonstration(str(number)) for number in range(1000, 1032)]
    for _ in range(await model.get_step(), 3):
        result = await model.train_sft(demonstrations, gavel.SftConfig(learning_rate=2e-3, batch_size=8))
        print(f"step {result.step}: loss {result.metrics['loss']:.2f}")


asyncio.run(main())
