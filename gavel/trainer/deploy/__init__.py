"""Checkpoints served elsewhere: one call puts a LoRA adapter behind a hosted, OpenAI-compatible endpoint.

    deployment = await model.deploy("together", step="best")
    client = deployment.openai_client()
    await deployment.undeploy()

`host` says what a host does and opens one by its name, one file per host beside it; `adapter_facts` reads what a host
must know of a checkpoint; `record` is the journal that lets the same command go on after a crash; `retry` repeats
requests; `smoke_test` proves that the deployment serves this adapter; `deploy` runs all of these in order.
"""
