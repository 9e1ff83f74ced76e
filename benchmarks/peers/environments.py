"""The libraries compared, and a virtual environment for each, outside the repository.

An environment is made once, by `python -m venv` and pip, and kept. Libraries that ask for much more than their judging
code imports (torch, vllm) are installed without their dependencies, and the few modules imported after them.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PYTHON = "python3.11"
DRIVERS = Path(__file__).parent / "drivers"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of using a library."""

    name: str
    what: str
    form: str
    """The reply format that it asks for, a key of `FORMS`."""
    is_scripted: bool = False
    """Gets the malformed replies; of variants that read a reply in the same way one is enough."""


@dataclass(frozen=True, slots=True)
class Peer:
    package: str
    version: str
    driver: str
    variants: tuple[Variant, ...]
    alone: bool = False
    """Installed without its dependencies and whichever Python it asks for; `also` is what its judging code imports."""
    also: str = ""


PEERS = (
    Peer(
        "openpipe-art",
        "0.5.18",
        "openpipe_art.py",
        (
            Variant("ruler", "RULER", "numbers", is_scripted=True),
            Variant("ruler4", "RULER, mean of 4 calls", "numbers"),
        ),
    ),
    Peer(
        "openreward",
        "0.1.167",
        "openreward_judging.py",
        (
            Variant("groupwise", "groupwise", "list", is_scripted=True),
            Variant("knockout", "pairwise, knockout", "winner", is_scripted=True),
            Variant("roundrobin", "pairwise, round robin", "winner"),
            Variant("bothorders", "pairwise, round robin in both orders", "winner"),
        ),
    ),
    Peer(
        "py-openjudge",
        "0.2.4",
        "openjudge_graders.py",
        (
            Variant("tournament", "GRPO tournament", "rank", is_scripted=True),
            Variant("debiased", "GRPO tournament, debiased", "rank"),
        ),
        alone=True,
        also="loguru json_repair<1 pydantic<3 openai tenacity<10 tqdm numpy pandas<3 tiktoken dashscope",
    ),
    Peer(
        "reward-hub",
        "0.1.10",
        "reward_hub_judge.py",
        (
            Variant("pointwise", "pointwise, 0 to 10", "rating", is_scripted=True),
            Variant("groupwise", "groupwise, better half", "selection", is_scripted=True),
        ),
        alone=True,
        also="litellm<1.75,>=1.70 numpy requests openai python-dotenv tenacity anyio",
    ),
    Peer(
        "autorubric",
        "1.6.1",
        "autorubric_grader.py",
        (Variant("ordinal", "one ordinal criterion", "option", is_scripted=True),),
    ),
    Peer(
        "nemo-gym",
        "0.4.0",
        "nemo_gym_genrm.py",
        (
            Variant("circular", "genrm_compare, circular", "pair", is_scripted=True),
            Variant("allpairs", "genrm_compare, all pairs", "pair"),
        ),
        alone=True,
        also="fastapi itsdangerous uvicorn hydra-core omegaconf rich aiohttp orjson requests openai<=2.7.2 ray wandb "
        "pydantic tqdm devtools yappi gprof2dot pydot psutil numpy pandas",
    ),
)


class EnvironmentFailed(Exception):
    """With the reason in one line."""


def prepare(peer: Peer, cache: Path) -> Path:
    """The Python of the library's environment, which is made if it is not there."""
    home = cache / f"{peer.package}-{peer.version}"
    python, made = home / "bin" / "python", home / "made.json"
    wanted = json.dumps([PYTHON, peer.alone, peer.also])
    if made.exists() and made.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(home, ignore_errors=True)
    interpreter = shutil.which(PYTHON)
    if interpreter is None:
        raise EnvironmentFailed(f"there is no {PYTHON} here")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    wheel = f"{peer.package}=={peer.version}"
    _run([interpreter, "-m", "venv", str(home)])
    _run([*pip, *(["--no-deps", "--ignore-requires-python"] if peer.alone else []), wheel])
    if peer.also:
        _run([*pip, *peer.also.split()])
    made.write_text(wanted, encoding="utf-8")
    return python


def versions(python: Path) -> str:
    """Of the clients that the library calls its judge with."""
    code = (
        "import importlib.metadata as m, sys\n"
        "names = [d.name for d in m.distributions() if d.name in ('litellm', 'openai', 'aiohttp')]\n"
        "print(', '.join(['Python ' + sys.version.split()[0], *(f'{n} {m.version(n)}' for n in sorted(names))]))"
    )
    return _run([str(python), "-c", code]).strip()


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"{' '.join(command[:4])} … took more than 15 minutes") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise EnvironmentFailed(f"{' '.join(command[:4])} …: {last}"[:300])
    return done.stdout
