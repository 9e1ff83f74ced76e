"""`sky status NAME`, which writes the cluster's entry for ssh."""

import sys

import sky


def cli() -> int:
    command, name = sys.argv[1:]
    assert command == "status"
    if not sky.get(sky.status([name])):
        return 1
    (sky.home() / "ssh_names").open("a").write(f"{name}\n")
    return 0
