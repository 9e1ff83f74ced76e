"""Trains and serves on a cluster that SkyPilot starts, in any cloud, on Kubernetes or on Slurm.

    backend = await gavel.SkyPilotBackend.launch(cluster="gavel", accelerators="H100:1")
    await model.register(backend)

The cluster runs `gavel backend`, and `backend` is a `RemoteBackend` at the other end of an ssh tunnel. `cluster_settings`
is what a user chooses, `cluster_task` what the cluster is to do (`setup.sh`, `run.sh`), `host` who starts it: SkyPilot
(`sky_host`), or this machine (`this_machine`), which runs the same two scripts. `exports` writes them for other systems.
"""
