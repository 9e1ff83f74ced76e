"""What a cluster is to do, as SkyPilot's YAML says it: machines, the setup of the Gavel that runs here, the run script.

The run script needs SKYPILOT_NUM_NODES, SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS and SKYPILOT_NUM_GPUS_PER_NODE where
there are several nodes or GPUs. Then torchrun starts a process for each GPU; one process is started plainly.
GAVEL_PYTHON is another interpreter than that of the setup. No script holds a secret.
"""

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from gavel.base.files import file_sha256, replacing
from gavel.trainer.backends.skypilot.cluster_settings import ClusterError, ClusterSettings

DISTRIBUTION = "gavel-rl"
_EXTRAS = "[service,train]"
_THERE = "~/.gavel/wheels"
_BUILD_SECONDS = 300.0
_BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src", "gavel")


@dataclass(frozen=True, slots=True)
class OwnPackage:
    """What pip installs, from an index, a repository or a wheel."""

    identity: str
    """Different for other code."""
    source: str = ""
    """Version (==1.2) or address (@ git+https://…); empty for a wheel."""
    wheel: Path | None = None
    """Here; it is copied to `wheel_there`."""

    @property
    def wheel_there(self) -> str:
        assert self.wheel is not None
        return f"{_THERE}/{self.identity}/{self.wheel.name}"

    def shell_word(self, extras: str = "") -> str:
        """A requirement as a shell there reads it; `extras` such as [train]."""
        if self.wheel is None:
            return shlex.quote(f"{DISTRIBUTION}{extras}{self.source}")
        return '"$HOME"/' + shlex.quote(self.wheel_there[2:] + extras)


def own_package(cache: Path) -> OwnPackage:
    """The package that is installed here; of a checkout, a wheel that is built into `cache`. Raises `ClusterError`."""
    installed = _installed()
    checkout = _checkout()
    if checkout is not None:
        return _built(checkout, cache)
    if installed is None:
        raise ClusterError(
            "Gavel runs here from files that are no checkout and are not installed", "Install it: pip install gavel-rl"
        )
    version, origin = installed
    url = str(origin.get("url", ""))
    if vcs := origin.get("vcs_info"):
        source = f" @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
        return OwnPackage(identity=str(vcs["commit_id"]), source=source)
    if not url.startswith("file:"):
        source = f" @ {url}" if url else f"=={version}"
        return OwnPackage(identity=hashlib.sha256(source.encode()).hexdigest()[:16], source=source)
    path = Path(url2pathname(urlsplit(url).path))
    if path.suffix == ".whl" and path.is_file():
        return _wheel(path)
    if (path / "pyproject.toml").is_file():
        return _built(path, cache)
    raise ClusterError(
        f"Gavel was installed from {path}, which is not there any more",
        "Install it again, so that the same package can go to the cluster.",
    )


def _installed() -> tuple[str, dict[str, Any]] | None:
    try:
        found = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return None
    return found.version, json.loads(found.read_text("direct_url.json") or "{}")


def _checkout() -> Path | None:
    """The checkout that this code is part of; None for an installed package."""
    root = Path(__file__).resolve().parents[4]
    pyproject = root / "pyproject.toml"
    return root if pyproject.is_file() and f'name = "{DISTRIBUTION}"' in pyproject.read_text() else None


def _built(checkout: Path, cache: Path) -> OwnPackage:
    """A wheel of the checkout as its files are now; the same files are built once."""
    sources = cache / _digest(checkout)
    wheels = sorted(sources.glob("*.whl"))
    if not wheels:
        with tempfile.TemporaryDirectory(prefix="gavel-wheel-") as folder:
            copy, made = Path(folder) / "source", Path(folder) / "wheels"
            for name in _BUILT_FROM:
                _copy(checkout / name, copy / name)
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--quiet"]
            isolated = [] if not _has_setuptools() else ["--no-build-isolation"]
            done = subprocess.run(
                [*command, *isolated, "--wheel-dir", str(made), str(copy)],
                capture_output=True,
                text=True,
                timeout=_BUILD_SECONDS,
            )
            if done.returncode != 0:
                raise ClusterError(
                    f"no wheel can be built of {checkout}: {done.stderr.strip()[-500:]}", "Try: pip wheel --no-deps ."
                )
            (wheel,) = made.glob("*.whl")
            sources.mkdir(parents=True, exist_ok=True)
            wheels = [sources / wheel.name]
            with replacing(wheels[0]) as unfinished:
                shutil.copy(wheel, unfinished)
    return _wheel(wheels[0])


def _has_setuptools() -> bool:
    try:
        return int(distribution("setuptools").version.split(".")[0]) >= 77
    except PackageNotFoundError:
        return False


def _wheel(path: Path) -> OwnPackage:
    return OwnPackage(identity=file_sha256(path)[:16], wheel=path)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and not source.is_symlink():
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(source, target, symlinks=True, ignore=ignored)
    else:
        shutil.copy(source, target, follow_symlinks=False)


def _digest(checkout: Path) -> str:
    found = hashlib.sha256()
    for file in sorted([checkout / "pyproject.toml", *(checkout / "gavel").rglob("*")]):
        if file.is_file() and "__pycache__" not in file.parts:
            found.update(f"{file.relative_to(checkout)}\0{file.stat().st_size}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


def setup_script(package: OwnPackage) -> str:
    """Installs Gavel on this node; the same package again costs nothing."""
    given = {
        "gavel_identity": shlex.quote(package.identity),
        "gavel_package": package.shell_word(),
        "gavel_requirement": package.shell_word(_EXTRAS),
    }
    variables = "".join(f"{name}={value}\n" for name, value in given.items())
    return variables + _text("setup.sh")


def run_script(arguments: Sequence[str]) -> str:
    """Runs Python with these arguments on this node. An argument that begins with ~/ is in the home directory there."""
    words = (
        '"$HOME"/' + shlex.quote(argument[2:]) if argument.startswith("~/") else shlex.quote(argument)
        for argument in arguments
    )
    return f"set -- {' '.join(words)}\n{_text('run.sh')}"


def _text(name: str) -> str:
    return (files("gavel.trainer.backends.skypilot") / name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """One task of SkyPilot: `gavel backend` on the nodes, which ends itself when it is idle."""

    settings: ClusterSettings
    package: OwnPackage

    def config(self) -> dict[str, Any]:
        """For `sky.Task.from_yaml_config`; secrets are added to the task itself."""
        settings = self.settings
        wheel = self.package.wheel
        mounts = {} if wheel is None else {self.package.wheel_there: str(wheel)}
        config: dict[str, Any] = {
            "name": settings.cluster,
            "num_nodes": settings.num_nodes,
            "resources": self._resources(),
            "setup": setup_script(self.package),
            "run": run_script(self._arguments()),
        }
        return config | ({"file_mounts": mounts} if mounts else {})

    def _resources(self) -> dict[str, Any]:
        """`wait_for: jobs`: an open tunnel is no work, and the server, which is a job, ends itself when it is idle."""
        settings = self.settings
        given = {
            "infra": settings.infra,
            "accelerators": settings.accelerators,
            "image_id": settings.image,
            "cpus": settings.cpus,
            "memory": settings.memory,
            "disk_size": settings.disk_gb,
        }
        autostop = {"idle_minutes": settings.last_minutes, "down": settings.ends_machines, "wait_for": "jobs"}
        chosen = {name: value for name, value in given.items() if value is not None}
        return chosen | ({"use_spot": True} if settings.use_spot else {}) | {"autostop": autostop}

    def _arguments(self) -> tuple[str, ...]:
        settings = self.settings
        options: dict[str, object] = {
            "port": settings.port,
            "runs": settings.runs,
            "engine": settings.engine,
            "slots": settings.slots,
            "max-context": settings.max_context,
            "versions": settings.versions,
            "idle-minutes": settings.server_idle_minutes,
        }
        given = [part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))]
        return ("-m", "gavel", "backend", *given)
