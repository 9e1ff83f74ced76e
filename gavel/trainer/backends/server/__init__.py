"""Puts a `LocalBackend` behind HTTP, for `RemoteBackend`: `gavel backend`.

    create_app(LocalBackend("runs", port=0), key="…", root=Path("runs"))

`app` has the routes, `jobs` what models are doing, `journal` what they have done (so that a job that is sent again is
not done twice, also by a server that was killed), `uploads` the files of groups, and `passthrough` the way to a model's
OpenAI-compatible endpoint.
"""
