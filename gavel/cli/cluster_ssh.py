"""`gavel cluster ssh`."""

import asyncio
import os
import shutil
import sys

from gavel.base.errors import GavelError
from gavel.cli.cluster_options import Name, host_of_cluster, need_service
from gavel.cli.lazy_commands import single_command


def ssh(name: Name = "gavel") -> None:
    """Open a shell on a cluster's first node."""
    need_service()
    from gavel.trainer.backends.skypilot.sky_host import SkyHost

    host = host_of_cluster(name)
    if not isinstance(host, SkyHost):
        raise GavelError(f"{name} is this machine", "Open a shell here.")
    if (state := asyncio.run(host.state(name))) != "up":
        raise GavelError(f"the cluster {name} is {state}", f"Start it: gavel cluster up {name}")
    asyncio.run(host.write_ssh_config(name))
    program = shutil.which("ssh")
    if program is None:
        raise GavelError("there is no ssh here", "Install it (Debian: apt install openssh-client).")
    sys.stdout.flush()
    os.execv(program, ["ssh", "--", name])


app = single_command(ssh)
