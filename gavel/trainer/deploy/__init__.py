"""Checkpoints served elsewhere: one call puts a LoRA adapter behind a hosted, OpenAI-compatible endpoint.

    deployment = await model.deploy("together", step="best")
    client = deployment.openai_client()
    await deployment.undeploy()

`deploy` runs it all in order; `record` is the adapter's facts and the names by which the same command goes on after a
crash; `host` says what a host does and how one is asked, with one file per host beside it; `smoke_test` proves that the
deployment serves this adapter.
"""
