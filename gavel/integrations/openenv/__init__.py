"""OpenEnv, both ways: its environments as scenarios, and scenarios as its environments.

    gavel check "openenv:http://localhost:8000?tasks=200&seed=1" --agent openai/gpt-5-mini
    gavel serve-env returns_desk --openenv --port 8000

Written against openenv 0.10: a WebSocket `/ws` on which `reset`, `step`, `state` and `close` are JSON messages;
`/schema`, `/metadata` and the task API over HTTP.
"""
