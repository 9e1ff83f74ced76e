"""Serves the policy under training as an OpenAI-compatible endpoint, with the token ids that exact training needs.

    server = EndpointServer(engine, policy, model="clerk")
    client = AsyncOpenAI(base_url=server.base_url, api_key="gavel")
    reply = await client.chat.completions.create(model="clerk@3", messages=messages)
    reply.choices[0].token_ids           # what the engine sampled, never tokenized again

`openai_server` is the endpoint, `turn_cache` continues a conversation from the token ids that were sampled for it.
"""
