"""Trains and serves on another machine, where `gavel backend` runs.

    backend = gavel.RemoteBackend("http://gpu-box:8090", key)     # or GAVEL_BACKEND_URL and GAVEL_BACKEND_KEY
    await model.register(backend)
    result = await model.train(groups)

`client` is the backend, `connection` its requests, sent again until the server has answered, and `wire` what both
sides say.
"""
