"""Calls to language models, with limits, retries, a budget, prices and a cassette. Knows nothing of judging.

    client = Client("openai/gpt-5-mini", budget=Budget(max_cost_usd=5), cassette=Cassette("replies.sqlite"))
    reply = await client.ask([{"role": "user", "content": "Name a color as JSON."}], schema)
    reply.text, reply.prompt_tokens, reply.cost_usd

client.py draws the loops of a call. Every failure is an `LlmError` with a remedy.
"""
