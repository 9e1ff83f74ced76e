"""verifiers' files without verifiers: exported episodes, and packages of scenarios."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.integrations.verifiers.formats import episodes
from gavel.scenarios.formats.exported import Losses
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.formats.attempts import both, sampled, stored, whole


def written(folder: Path, losses: Losses | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    found = episodes(both(), "desk", losses or Losses())
    (folder / "traces.jsonl").write_text("".join(json.dumps(each) + "\n" for each in found))
    return folder


def test_the_nodes_of_a_branch_hold_the_tokens_that_the_model_saw():
    (episode,) = episodes(stored(whole()), "desk", Losses())
    clerk, searcher = episode["traces"]
    assert [node.get("token_ids", []) for node in clerk["nodes"]] == [[], [], [1, 2, 3, 4, 5], [], [6, 7]]
    assert clerk["nodes"][2]["mask"] == [False] * 3 + [True] * 2
    assert clerk["nodes"][2]["logprobs"] == [-0.1, -0.2]
    assert [node["parent"] for node in clerk["nodes"]] == [None, 0, 1, 2, 3]
    assert searcher["agent"]["name"] == "searcher"
    assert episode["group"] == {"id": "train/12/0"}


def test_a_turn_whose_prompt_was_rewritten_has_no_tokens_and_is_counted():
    rewritten = Trajectory(
        messages_and_choices=[
            {"role": "user", "content": "a"},
            sampled("b", prompt=[1], ids=[2], logprobs=[-1.0]),
            {"role": "user", "content": "c"},
            sampled("d", prompt=[7, 2, 3], ids=[4], logprobs=[-1.0]),
        ]
    )
    losses = Losses()
    (episode,) = episodes(stored(rewritten), None, losses)
    assert [bool(node.get("token_ids")) for node in episode["traces"][0]["nodes"]] == [False, True, False, False]
    assert any("does not continue" in note for note in losses.notes())


def test_gavel_reads_its_episodes_back(tmp_path: Path):
    groups = read_groups(written(tmp_path) / "traces.jsonl")
    (clerk,) = [each for group in groups for each in group if each.metadata["agent"] == "clerk"]
    assert clerk.metrics["independent_reward"] == 0.75
    assert [message["role"] for message in clerk.messages()] == ["system", "user", "assistant", "tool", "assistant"]
    assert clerk.messages()[1]["content"] == whole().messages()[1]["content"]
    assert {each.status_reason for group in groups for each in group if each.status == "failed"} == {"boom �"}


@pytest.mark.exports
def test_verifiers_reads_the_episodes(tmp_path: Path):
    store = pytest.importorskip("verifiers.v1.utils.trace_store", reason="make test-exports installs verifiers")
    from verifiers.v1.trace import WireTrace

    losses = Losses()
    found: list[Any] = store.read_episodes(written(tmp_path, losses), WireTrace)
    first, second, raised = found
    clerk, searcher = first.traces
    (branch,) = clerk.branches
    assert branch.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert branch.sampled_mask == [False, False, False, True, True, False, True]
    assert branch.logprobs == pytest.approx([0, 0, 0, -0.1, -0.2, 0, -0.3])
    assert clerk.reward == 0.75
    assert clerk.metrics == {"success": 1.0, "turns": 2.0}
    assert clerk.info["gavel"]["judgement"]["explanation"] == "Cites the order."
    assert clerk.tools[0].name == "get_order"
    assert clerk.messages[2].tool_calls[0].arguments == '{"id": "A1"}'
    assert clerk.num_output_tokens == 3
    assert searcher.agent.name == "searcher"
    assert (first.ok, second.ok, raised.ok) == (True, False, False)
    assert second.traces[0].messages[1].content == "� hi \x00"
    assert second.last_error.message == "boom �"
    assert (raised.traces, raised.last_error.type, raised.last_error.message) == ([], "ValueError", "lost")
    assert {episode.group.id for episode in found} == {"train/12/0"}
    assert any("no type for" in note for note in losses.notes())


SHOP = "import gavel\nshop = gavel.Scenario('shop', tasks=[gavel.Task(user='Hi.')], held_out=[]{more})\n"
