"""A batch script for Slurm: the setup once, in the home directory that nodes share, then the run script on each."""

from gavel.trainer.backends.skypilot.exports.exported_job import ExportedJob, commented
from gavel.trainer.backends.skypilot.scripts import run_script, setup_script


def slurm_script(job: ExportedJob) -> str:
    """Bash, for `sbatch`."""
    settings, package = job.settings, job.package
    gpus = [f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={settings.cluster}",
        f"#SBATCH --nodes={settings.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        *gpus,
        f"#SBATCH --output={settings.cluster}-%j.log",
    ]
    wheel = [f"{package.wheel.name} must be beside this script."] if package.wheel is not None else []
    exports = [f"export {name} first; sbatch hands it on." for name in job.secrets]
    tunnel = (
        f"ssh -L {settings.port}:127.0.0.1:{settings.port} -J LOGIN NODE leads to the server; squeue names the node."
    )
    told = [
        "Start it with sbatch, from this folder. Add your site's partition, account and time limit.",
        *wheel,
        *exports,
    ]
    checks = "".join(f': "${{{name}:?is not set: export it before sbatch}}"\n' for name in job.secrets)
    return (
        "\n".join(head)
        + "\n"
        + commented([*told, *([tunnel] if job.program is None else [])])
        + "set -euo pipefail\n"
        + checks
        + 'cd "${SLURM_SUBMIT_DIR:-.}"\n'
        + 'wheels="$PWD"\n'
        + "export wheels\n"
        + 'SKYPILOT_NODE_IPS="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"\n'
        + 'SKYPILOT_NUM_NODES="$SLURM_JOB_NUM_NODES"\n'
        + f"SKYPILOT_NUM_GPUS_PER_NODE={job.gpus}\n"
        + 'GAVEL_MASTER_PORT="$((20000 + SLURM_JOB_ID % 20000))"\n'
        + "export SKYPILOT_NODE_IPS SKYPILOT_NUM_NODES SKYPILOT_NUM_GPUS_PER_NODE GAVEL_MASTER_PORT\n"
        + _document("setup", setup_script(package, settings.setup, directory='"$wheels"'))
        + _document("run", 'export SKYPILOT_NODE_RANK="$SLURM_NODEID"\n' + run_script(job.arguments))
        + 'if [ -z "${GAVEL_PYTHON:-}" ]; then\n  bash -c "$setup"\nfi\n'
        + 'exec srun --ntasks-per-node=1 --kill-on-bad-exit=1 bash -c "$run"\n'
    )


def _document(name: str, script: str) -> str:
    """A variable of the shell that holds the script."""
    end = f"END_OF_{name.upper()}"
    return f"{name}=\"$(cat <<'{end}'\n{script}{end}\n)\"\n"
