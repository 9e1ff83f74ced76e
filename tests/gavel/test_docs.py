"""What the pages, the README and the examples show runs as shown, each page is walked as it is written, in an empty
directory, what it links to and types is there, and the site builds of them."""

import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

import gavel
from gavel.scenarios.group import TrajectoryGroup, to_line
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.runs import run_directory
from tests.forked import gavel as run_gavel
from tests.forked import script, start_gavel, succeed
from tests.gavel.page_walker import Walk, blocks, steps
from tests.limits import HANG_SECONDS
from tests.scenarios.formats.attempts import both

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(?:python )?((?:gavel|tests|benchmarks|docs|examples)/[\w/]+\.\w+)")
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
from generate import commands, environment, llms, public_names, repository  # noqa: E402

PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
LISTS = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
BENCHMARKS = DOCS / "benchmarks.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.parametrize(
    ("page", "smaller", "printed"),
    [
        ("judge", {}, r"(?s).*0\.2 ± 0\.0 \['addresses the judge'\].*\nscored 4 calls \[\]\n"),
        ("compare", {"seeds=2, steps=10": "seeds=1, steps=1"}, "inconclusive: one seed has no interval\n"),
        ("evaluate", {"tasks=64": "tasks=4"}, r"base:embedded/returns-desk \d\.\d\d \("),
    ],
)
def test_the_program_of_a_page_runs(page: str, smaller: dict[str, str], printed: str, tmp_path: Path) -> None:
    program, *_ = blocks(DOCS / f"{page}.md", "python")
    for shown, walked in smaller.items():
        program = program.replace(shown, walked)
    (tmp_path / "from_the_page.py").write_text(program)
    done = script(tmp_path / "from_the_page.py", cwd=tmp_path)
    assert re.match(printed, done.stdout), done.stdout + done.stderr


@pytest.mark.slow
def test_the_commands_of_several_samplers_are_ones_that_gavel_takes(tmp_path: Path) -> None:
    (block,) = blocks(DOCS / "how-to" / "several-gpus.md", "bash", "Some GPUs sample, the others learn")
    commands = [line.partition("#")[0].split()[1:] for line in block.splitlines()]
    trains = [command for command in commands if command[0] == "train"]
    assert len(trains) == 2
    for command in trains:
        succeed(*command, "--dry-run", cwd=tmp_path, HF_HUB_OFFLINE="1", OPENAI_API_KEY="none")
    refused = run_gavel("backend", "--vllm-replicas", "2", "--vllm-url", "http://gpu-1:8000", cwd=tmp_path)
    assert refused.returncode != 0
    assert "--vllm-replicas: backend.engine.replicas: replicas are started here" in refused.stderr


def test_the_page_of_the_viewer_makes_anchors_of_what_a_person_scored(tmp_path: Path) -> None:
    (program,) = blocks(DOCS / "view.md", "python")
    (group,) = [stored.group for stored in both()]
    members = [
        member.model_copy(update={"metrics": {"human": score}, "agent": None})
        for member, score in zip(group.trajectories[:2], (0.9, 0.2), strict=True)
    ]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "annotations.jsonl").write_text(f"{to_line(TrajectoryGroup(members))}\n")
    (tmp_path / "from_the_page.py").write_text(f"{program}print([anchor.score for anchor in judge.anchors])\n")
    done = script(tmp_path / "from_the_page.py", cwd=tmp_path)
    assert done.stdout.strip() == "[0.9, 0.2]", done.stderr


@pytest.mark.slow
def test_the_scenarios_page_runs(tmp_path: Path) -> None:
    programs = blocks(DOCS / "scenarios.md", "python")
    told = [line for program in programs for line in re.findall(r"print\(.*\)  # (.*)", program)]
    said: list[str] = []
    for number, program in enumerate(programs):
        (tmp_path / f"program_{number}.py").write_text(program)
        said += script(tmp_path / f"program_{number}.py", cwd=tmp_path).stdout.splitlines()
    assert said == told


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_service_s_page_runs(tmp_path: Path) -> None:
    page = DOCS / "service.md"
    (commands,), (settings,) = (blocks(page, kind) for kind in ("bash", "toml"))
    (tmp_path / "careful.txt").write_text("Be careful.")
    (tmp_path / "gavel.toml").write_text(settings)
    checked = run_gavel("serve", "--check", cwd=tmp_path, TRAINER_KEY="k" * 40, OPENAI_API_KEY="k")
    assert "retention_days = 30" in checked.stdout, checked.stderr
    without_keys = settings.partition("[keys")[0]
    (tmp_path / "gavel.toml").write_text(without_keys.replace("8080", "0").replace("openai/gpt-5-mini", "stand-in"))
    service = start_gavel("serve", cwd=tmp_path)
    try:
        service.wait_for("http://")
        url = re.findall(r"http://[\d.:]+", service.stdout)[0]
        curl = commands[commands.index("curl") :].replace("http://127.0.0.1:8080", url)
        asked = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=HANG_SECONDS)
        assert json.loads(asked.stdout)["scores"] == [0.5, 0.0], asked.stderr
    finally:
        service.send(signal.SIGTERM)
        ended = service.end()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("page", [*PAGES, *LISTS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_links_to_or_names_exists(page: Path) -> None:
    text = page.read_text()
    linked = [page.parent / target for target in re.findall(r"\]\((?!http)([^)#]+)\)", text)]
    named = [ROOT / name for name in NAMED.findall(text) if "NAME" not in name]
    assert [path for path in linked + named if not path.exists()] == []


def test_the_page_of_installation_lists_the_extras() -> None:
    table = (ROOT / "docs" / "install.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/how-to/real-model-demo.md"])
def test_each_figure_stands_with_its_command_among_the_benchmarks(page: str) -> None:
    known = BENCHMARKS.read_text()
    prose = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    text = re.sub(r"!\[[^]]*\]|`[^`]*`", "", prose)
    assert [figure for figure in re.findall(r"(?<![\d.])0?(\.\d\d?)\b", text) if figure not in known] == []
    commands = re.findall(r"`((?:gavel compare|python benchmarks/)[^`]*)`", prose)
    assert [command for command in commands if command not in known] == []


def test_the_picture_is_what_its_script_draws_and_names_files_that_exist() -> None:
    script = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "make_architecture.py")))
    assert script.TARGET.read_text() == script.picture()
    named = {file for row in script.ROWS for box in row.boxes for file in box.files.split()}
    assert {file for file in named if not list((ROOT / "gavel").rglob(file))} == set()


WALKED = sorted(page for folder in ("tutorials", "how-to") for page in (DOCS / folder).glob("*.md"))
WALKED += [DOCS / name for name in ("index.md", "install.md", "faq.md", "troubleshooting.md", "agents.md", "art.md")]


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    blocks = [step for step in steps(page) if step.language in ("bash", "python")]
    if not blocks:
        pytest.skip("no block to run")
    with Walk(tmp_path) as walk:
        ran = walk.page(page)
    assert ran == sum(step.title is None and step.mode != "skip" for step in blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_python_is_python(page: Path) -> None:
    for step in steps(page):
        if step.language == "python":
            compile(step.text, f"{page.name}:{step.line}", "exec", flags=0x2000)  # top-level await


_BLOCK = re.compile(r"^ *```(?:bash)?\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`(gavel [a-z][^`]*)`(?!`)")


@cache
def options() -> dict[str, set[str]]:
    """Command to the options that it takes."""
    return {
        each.name: {name for param in each.command.params for name in (*param.opts, *param.secondary_opts)}
        | {"--help", "-h"}
        for each in commands.commands()
    }


def typed(text: str) -> list[list[str]]:
    """The `gavel …` commands of a page: those of its blocks, and those in backticks."""
    lines = [line for block in _BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += [match.replace("\n", " ") for match in _INLINE.findall(text)]
    found: list[list[str]] = []
    for line in lines:
        for part in re.split(r"&&|\||;", line.partition(" #")[0]):
            command = re.sub(r"^\s*(?:\$ )?(?:\w+=\S+ )*(?:\.venv/bin/|torchrun .* -m )?", "", part)
            if command.startswith("gavel "):
                try:
                    found.append(shlex.split(command.replace("…", "")))
                except ValueError:
                    found.append(command.split())
    return found


def unknown(words: list[str]) -> list[str]:
    """What of a typed command the command line does not know."""
    if words[1:2] and words[1].startswith("-"):
        return []
    names = [name for name in options() if words[: len(name.split())] == name.split()]
    if not names:
        groups = {name.split()[1] for name in options() if len(name.split()) > 2}
        is_prose = len(words) > 1 and (words[1] in groups or words[1].isupper())
        return [] if is_prose else [" ".join(words[:2])]
    name = max(names, key=len)
    given = words[: words.index("--")] if "--" in words else words
    return [
        f"{name} {word.partition('=')[0]}"
        for word in given
        if word.startswith("--") and word.partition("=")[0] not in options()[name]
    ]


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_and_option_of_a_page_exists(page: Path) -> None:
    assert [wrong for words in typed(page.read_text()) for wrong in unknown(words)] == []


LOOP = ROOT / "examples" / "train_loop.py"
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ["returns.py", "own_rollout.py", "only_judge.py"])
def test_the_readme_shows_the_example_as_it_is_and_a_scenario_takes_less_than_thirty_lines_of_code(name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    assert f"```python\n{text}```" in README
    assert name == "only_judge.py" or sum(bool(line.strip()) for line in text.splitlines()) < 30


def run(name: str, *arguments: str, cwd: Path) -> "CompletedProcess[str]":
    result = script(ROOT / "examples" / name, *arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.slow
def test_the_own_rollout_trains(tmp_path: Path) -> None:
    result = run("own_rollout.py", cwd=tmp_path)
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["step 1", "step 2", "step 3"]
    assert not any(word in result.stderr for word in ("Traceback", "Unclosed"))
    assert (tmp_path / "runs" / "orders" / "clerk-1" / "checkpoints" / "000003").is_dir()


@pytest.mark.slow
def test_the_demonstrations_are_learnt(tmp_path: Path) -> None:
    losses = [float(line.rpartition(" ")[2]) for line in run("demonstrations.py", cwd=tmp_path).stdout.splitlines()]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert (tmp_path / "runs" / "orders" / "pupil-1" / "trajectories" / "sft" / "000003.jsonl.zst").is_file()


@pytest.mark.slow
def test_the_judge_alone_scores(tmp_path: Path) -> None:
    result = run("only_judge.py", cwd=tmp_path)
    assert f"```\n{result.stdout}```" in README
    scores = [float(line.split()[0]) for line in result.stdout.splitlines()]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 2


@pytest.mark.slow
def test_the_loop_by_hand_is_short_trains_and_prints_a_line_for_each_step(tmp_path: Path) -> None:
    assert len(LOOP.read_text().splitlines()) <= 120
    assert run(LOOP.name, "1", cwd=tmp_path).stdout.startswith("step  1: mean score 0.")


@pytest.mark.slow
async def test_the_update_of_the_loop_by_hand_is_that_of_model_train(tmp_path: Path) -> None:
    example = SimpleNamespace(**runpy.run_path(str(LOOP)))
    parts = example.Parts()
    try:
        groups = await example.roll_out(parts.model, 0)
        assert example.train(parts, groups, 1)["logprob_drift"] < 1e-4
        own = [weight.flatten().tolist() for weight in parts.policy.adapter_weights()]
    finally:
        parts.close()
    model = gavel.TrainableModel(name="loop", project="examples", base_model=EMBEDDED_POLICY, lora=parts.policy.lora)
    async with LocalBackend(tmp_path) as backend:
        await model.register(backend)
        assert (await model.train(groups, example.CONFIG)).step == 1
    saved = load_file(tmp_path / "examples" / "loop" / "checkpoints" / "000001" / "adapter_model.safetensors")
    assert sorted(own) == sorted(weight.flatten().tolist() for weight in saved.values())


@pytest.mark.docs
def test_every_file_of_a_run_directory_has_a_row() -> None:
    page = (ROOT / "docs" / "reference" / "run-directory.md").read_text()
    owned = {name for name in run_directory._OWN | run_directory._KEPT if not name.endswith(("-wal", "-shm"))}
    named = {name.rstrip("/") for name in re.findall(r"`([\w.-]+/?)(?:<[^`]*)?`", page)} | {
        "trajectories",
        "checkpoints",
    }
    assert owned - named == set()


@pytest.mark.docs
def test_every_environment_variable_of_the_code_is_listed() -> None:
    page = environment.page()
    read = set()
    for file in (ROOT / "gavel").rglob("*.py"):
        read |= set(re.findall(r"\"(GAVEL_[A-Z_0-9]+[A-Z0-9])\"", file.read_text()))
    assert {name for name in read if f"`{name}`" not in page and not name.startswith("GAVEL_SERVICE_")} == set()


def test_a_link_out_of_the_pages_is_mended_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    links = "[a](../../benchmarks/RESULTS.md#x) [`b[0]`](../../Makefile) [`Makefile`](../../Makefile) ![c](../judge.md)"
    monkeypatch.setattr(repository, "PUBLIC", "")
    mended = repository.relinked(links, "how-to/a.md", "docs/how-to/a.md")
    assert mended == "[a](../notebook.md#x) `b[0]` (`Makefile`) `Makefile` ![c](../judge.md)"
    monkeypatch.setattr(repository, "PUBLIC", "https://forge/")
    mended = repository.relinked(links, "how-to/a.md", "docs/how-to/a.md")
    assert "[`b[0]`](https://forge/Makefile) [`Makefile`](https://forge/Makefile)" in mended
    with pytest.raises(repository.DeadLinkError, match="nowhere"):
        repository.relinked("[a](../nowhere.py)", "a.md", "docs/a.md")


@pytest.mark.slow
def test_the_reference_for_agents_names_all_and_stays_short() -> None:
    text = llms.reference()
    assert [name for name in public_names.public_names() if f"gavel.{name}" not in text] == []
    assert [each.name for each in commands.commands() if each.name not in text] == []
    assert "loop.group_size = 8" in text
    assert "train.learning_rate" in text
    assert len(text) < 120_000


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "COLUMNS": "120"}
    built = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=3 * HANG_SECONDS)
    assert built.returncode == 0, built.stderr + built.stdout
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"(https?:[^\"]*)\"", text)
        loaded += re.findall(r"<link[^>]*rel=\"(?:stylesheet|preconnect|icon)\"[^>]*href=\"(https?:[^\"]*)\"", text)
        assert loaded == [], page
    api = (tmp_path / "site" / "reference" / "api" / "index.html").read_text()
    assert [name for name in gavel.__all__ if f"gavel.{name}" not in api and name != "__version__"] == []
    index = (tmp_path / "site" / "llms.txt").read_text()
    assert index.startswith("# Gavel\n\n> ")
    assert "[Your own scenario in 20 minutes](" in index
    assert "gavel.Judge" in (tmp_path / "site" / "llms-reference.txt").read_text()
    assert "Stop and resume a run" in (tmp_path / "site" / "search" / "search_index.json").read_text()
