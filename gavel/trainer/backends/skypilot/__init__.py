"""Trains and serves on a cluster that SkyPilot starts, in any cloud, on Kubernetes or on Slurm.

    backend = await gavel.SkyPilotBackend.launch(cluster="gavel", accelerators="H100:1")
    await model.register(backend)

The cluster runs `gavel backend`, and `backend` is a `RemoteBackend` at the other end of an ssh tunnel.
`cluster` is what a user chooses, what is remembered, and what the cluster is to do (`setup.sh`, `run.sh`), and `hosts`
who starts it: SkyPilot, or this machine in its place.
"""
