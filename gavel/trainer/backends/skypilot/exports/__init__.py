"""The scripts of a cluster for other systems: `job_group` (SkyPilot), `slurm_script`, `dockerfile`, `kubernetes_job`.

All run the same run script, and hold no secret: keys come from the environment of whoever starts them.
"""
