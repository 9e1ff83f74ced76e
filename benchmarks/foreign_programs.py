"""Programs that were written for other systems, run against Gavel as they are.

    python benchmarks/foreign_programs.py clients AGENTGYM      its own clients play `gavel serve-env returns_desk`
    python benchmarks/foreign_programs.py notebooks ART         its own notebooks train, with the import changed

`AGENTGYM` and `ART` are clones of WooooDyy/AgentGym and OpenPipe/ART. A notebook has an embedded policy, two steps, few
and short attempts, and rewards of 0 and 1 in turns, since so small a policy earns none.
"""

import argparse
import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import requests

NOTEBOOKS = (
    *("dev/yes-no-maybe", "examples/2048/2048", "examples/prisoners-dilemma", "examples/rock-paper-tool-use"),
    "examples/tic_tac_toe/tic-tac-toe",
)
_CHANGES = {
    r"^[%!].*$|<style>[\s\S]*?</style>": "",
    r"^import art$": "import gavel.integrations.art as art",
    r"from art\.": "from gavel.integrations.art.",
    r'"Qwen/[^"]*"': '"embedded/returns-desk"',
    r"range\(await model.get_step\(\), [\d_]+\)": "range(await model.get_step(), 2)",
    r"for _ in range\((64|32|48|18|8)\)": "for _ in range(4)",
    r"for _ in range\(10\):|PRISONERS_DILEMMA_ROUNDS = 10": lambda found: found[0].replace("10", "2"),
    r"(max_completion_tokens|max_tokens)=\d+": r"\1=12",
    r"for prompt in prompts": "for prompt in prompts[:3]",
}
_LEFT_OUT = ("FastLanguageModel", "pip install", "restart your runtime")


def play(client_class: Any, url: str) -> bool:
    """Whether a client comes to the end of an episode of two turns."""
    with contextlib.redirect_stdout(io.StringIO()):
        client = client_class(url, 10)
        client.reset(0)
        number = re.search(r"\b\d{4}\b", str(client.observe()))
        client.step(f"Thought: I look it up.\n\nAction: look_up_order {number[0] if number else 1001}")
        return client.step("Thought: done.\n\nAnswer: Your order cannot be refunded.").done


def run_clients(repository: Path) -> None:
    sys.path.insert(0, str(repository / "agentenv"))
    import agentenv.envs as envs  # pyright: ignore

    command = [sys.executable, "-m", "gavel", "serve-env", "returns_desk", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        lines = iter(server.stdout or ())
        url = next(found[0] for line in lines if (found := re.search(r"http://[\d.]+:\d+", line)))
        assert requests.get(url, timeout=60)
        names = [name for name in dir(envs) if name.endswith("Client")]
        ended = 0
        for name in names:
            try:
                is_over = play(getattr(envs, name), url)
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error!s:.120}")
                continue
            ended += is_over
            print(f"{name}: {'plays to the end' if is_over else 'does not come to the end'}")
        server.terminate()
    print(f"{ended} of {len(names)} clients play to the end")


def run_notebook(file: Path) -> list[int]:
    """Runs a notebook in the current directory; returns the tokens that each step trained."""
    from gavel.integrations import art

    cells = ["".join(cell["source"]) for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    code = "\n".join(cell for cell in cells if not any(words in cell for words in _LEFT_OUT))
    for pattern, changed in _CHANGES.items():
        code = re.sub(pattern, changed, code, flags=re.MULTILINE)
    for name in ("dotenv", "openpipe", "openpipe.client"):
        sys.modules[name] = types.ModuleType(name)
    vars(sys.modules["dotenv"])["load_dotenv"] = lambda: None
    no_reports = type("NoReports", (), {"api_key": None})
    vars(sys.modules["openpipe.client"]).update(OpenPipe=no_reports, AsyncOpenPipe=no_reports)
    train = art.TrainableModel.train

    async def train_on_turns(self: Any, trajectory_groups: Any, *arguments: Any, **options: Any) -> Any:
        groups = list(trajectory_groups)
        for group in groups:
            for number, trajectory in enumerate(group.trajectories):
                trajectory.reward = float(number % 2)
        return await train(self, groups, *arguments, **options)

    art.TrainableModel.train = train_on_turns  # pyright: ignore
    given: dict[str, Any] = {"__name__": file.stem}
    compiled = compile(code, file.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def run() -> None:
        if inspect.iscoroutine(running := eval(compiled, given)):
            await running

    asyncio.run(run())
    rows = [json.loads(line) for path in Path().rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    return [row["tokens_trained"] for row in rows if "tokens_trained" in row]


def run_notebooks(repository: Path) -> None:
    for name in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:  # each in a process of its own, as a notebook is
            command = [sys.executable, __file__, "notebook", str((repository / f"{name}.ipynb").resolve())]
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        print(f"{name}: {said[-1] if said else done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("clients", "notebooks", "notebook"))
    parser.add_argument("path", type=Path)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if asked.what == "notebook":
        print("tokens trained:", run_notebook(asked.path))
    else:
        (run_clients if asked.what == "clients" else run_notebooks)(asked.path)


if __name__ == "__main__":
    main()
