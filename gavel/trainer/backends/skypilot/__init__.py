"""Trains and serves on a cluster that SkyPilot starts, in any cloud, on Kubernetes or on Slurm.

    backend = await gavel.SkyPilotBackend.launch(cluster="gavel", accelerators="H100:1")
    await model.register(backend)

The cluster runs `gavel backend`, and `backend` is a `RemoteBackend` at the other end of an ssh tunnel.
`cluster_settings` is what a user chooses, `cluster_task` what the cluster is to do (`setup.sh`, `run.sh`), and `host`
who starts it: SkyPilot (`sky_host`), or this machine in its place (`this_machine`). `exports` writes the same scripts
for other systems.
"""
