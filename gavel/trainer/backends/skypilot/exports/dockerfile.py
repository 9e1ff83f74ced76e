"""An image whose entry point is the run script: its arguments are Python's."""

import json

from gavel.trainer.backends.skypilot.exports.exported_job import ExportedJob, commented
from gavel.trainer.backends.skypilot.scripts import run_text

HOME = "/srv/gavel"
USER = 10001
_END = "END_OF_RUN"


def dockerfile(job: ExportedJob) -> str:
    """For BuildKit, which every Docker of today builds with."""
    package, settings = job.package, job.settings
    image = f"{settings.cluster}-trainer"
    wheel = package.wheel
    requirement = package.shell_word(extras=True, directory="/tmp")
    gpus = " --gpus all" if job.gpus else ""
    keys = "".join(f" --env {name}" for name in job.secrets)
    ports = f" --publish 127.0.0.1:{settings.port}:{settings.port}" if job.program is None else ""
    told = [
        *([f"{wheel.name} must be beside this file."] if wheel else []),
        f"docker build --tag {image} .",
        f"docker run{gpus}{keys}{ports} --volume {settings.cluster}:{HOME} {image}",
    ]
    program = [f"COPY {json.dumps([file, f'{HOME}/{file}'])}" for file in job.files]
    lines = [
        "FROM python:3.12-slim",
        *([f"COPY {wheel.name} /tmp/{wheel.name}"] if wheel else []),
        f"RUN python -m venv /opt/gavel && /opt/gavel/bin/pip install --no-cache-dir {requirement}",
        f"COPY <<'{_END}' /opt/gavel/run.sh",
        run_text() + _END + "\n",
        f"RUN useradd --system --uid {USER} --home-dir {HOME} --create-home gavel",
        *program,
        f"ENV HOME={HOME} GAVEL_PYTHON=/opt/gavel/bin/python PATH=/opt/gavel/bin:$PATH PYTHONUNBUFFERED=1",
        f"ENV SKYPILOT_NUM_GPUS_PER_NODE={job.gpus}",
        f"WORKDIR {HOME}",
        f"VOLUME {HOME}",
        f"USER {USER}",
        'ENTRYPOINT ["bash", "/opt/gavel/run.sh"]',
        f"CMD {json.dumps(image_arguments(job, host='0.0.0.0'))}",
    ]
    return "# syntax=docker/dockerfile:1\n" + commented(told) + "\n".join(lines) + "\n"


def image_arguments(job: ExportedJob, *, host: str | None = None) -> list[str]:
    """The arguments of Python inside the image, where there is no shell to find the home directory."""
    given = [HOME + argument[1:] if argument.startswith("~/") else argument for argument in job.arguments]
    return [*given, "--host", host] if host is not None and job.program is None else given
