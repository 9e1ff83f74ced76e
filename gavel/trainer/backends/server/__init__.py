"""Puts a `LocalBackend` behind HTTP, for `RemoteBackend`: `gavel backend`.

    create_app(LocalBackend("runs", port=0), key="…", root=Path("runs"))

`app` has the routes and the way to a model's OpenAI-compatible endpoint, and runs it all until it is told to stop;
`jobs` is what models are doing, and the files that clients have sent for it.
"""
