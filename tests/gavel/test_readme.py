"""What the README shows is what the examples hold, and they run as shown."""

from pathlib import Path

import pytest

from tests.forked import script

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ["returns.py", "own_rollout.py", "only_judge.py"])
def test_the_readme_shows_the_example_as_it_is(name: str) -> None:
    assert f"```python\n{(ROOT / 'examples' / name).read_text()}```" in README


@pytest.mark.parametrize("name", ["returns.py", "own_rollout.py"])
def test_an_own_scenario_takes_fewer_than_thirty_lines_of_code(name: str) -> None:
    lines = (ROOT / "examples" / name).read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) < 30


@pytest.mark.slow
def test_the_own_rollout_trains(tmp_path: Path) -> None:
    result = script(ROOT / "examples" / "own_rollout.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["step 1", "step 2", "step 3"]
    assert "Traceback" not in result.stderr
    assert "Unclosed" not in result.stderr
    assert (tmp_path / "runs" / "orders" / "clerk-1" / "checkpoints" / "000003").is_dir()


@pytest.mark.slow
def test_the_demonstrations_are_learnt(tmp_path: Path) -> None:
    result = script(ROOT / "examples" / "demonstrations.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    losses = [float(line.rpartition(" ")[2]) for line in result.stdout.splitlines()]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert (tmp_path / "runs" / "orders" / "pupil-1" / "trajectories" / "sft" / "000003.jsonl.zst").is_file()


@pytest.mark.slow
def test_the_judge_alone_scores(tmp_path: Path) -> None:
    result = script(ROOT / "examples" / "only_judge.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"```\n{result.stdout}```" in README
    scores = [float(line.split()[0]) for line in result.stdout.splitlines()]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 2


@pytest.mark.slow
def test_a_script_in_the_shapes_of_art_trains(tmp_path: Path) -> None:
    result = script(Path(__file__).parent / "art_style.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "steps: 2" in result.stdout
    assert (tmp_path / ".art" / "art-style" / "agent-001" / "trajectories" / "val").is_dir()
