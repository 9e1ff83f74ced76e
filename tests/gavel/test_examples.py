"""What the README shows is what the examples hold, and they run as shown."""

import runpy
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

import gavel
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.embedded import EMBEDDED_POLICY
from tests.forked import script

ROOT = Path(__file__).parents[2]
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
