"""Any scenario behind AgentGym's HTTP protocol (dialect A), so that clients written for AgentGym can play it.

`held` plays episodes for clients, `items` numbers the tasks, `app` is the HTTP interface: what `gavel serve-env` runs.
"""
