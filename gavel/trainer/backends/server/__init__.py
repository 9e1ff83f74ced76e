"""Puts a `LocalBackend` behind HTTP, for `RemoteBackend`: `gavel backend`.

    create_app(LocalBackend("runs", port=0), key="…", root=Path("runs"))

`app` has the routes and the way to a model's OpenAI-compatible endpoint, and runs it all until it is told to stop;
`jobs` is what models are doing and the journal of what they have done (so that a job that is sent again is not done
twice, also by a server that was killed), `uploads` the files of groups and adapters.
"""
