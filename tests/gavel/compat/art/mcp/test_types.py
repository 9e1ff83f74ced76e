"""Collections of drafted scenarios."""

import pytest

from gavel.compat.art.mcp.types import GeneratedScenario, GeneratedScenarioCollection, MCPResource, MCPTool

SCENARIOS = GeneratedScenarioCollection(GeneratedScenario(f"task {n}", 1 + n % 5) for n in range(7))


def test_a_collection_is_the_same_after_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert GeneratedScenarioCollection.from_json(SCENARIOS.to_json()).to_dicts() == SCENARIOS.to_dicts()
    assert len(GeneratedScenarioCollection.from_json('[{"task": "x", "difficulty": 2}]')) == 1
    assert sorted(s.task for s in SCENARIOS.shuffle()) == [s.task for s in SCENARIOS]
    assert [s.difficulty for s in SCENARIOS.filter_by_difficulty(4)] == [4, 5]
    assert SCENARIOS.get_summary()["total_scenarios"] == 7
    SCENARIOS.preview(1)
    SCENARIOS.print_difficulty_distribution()
    assert capsys.readouterr().out.count("task") == 1


@pytest.mark.parametrize("difficulty", [0, 6, True, "2"])
def test_a_difficulty_is_from_1_to_5(difficulty: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 5"):
        GeneratedScenario("x", difficulty)
    with pytest.raises(ValueError, match="train_size is 9"):
        SCENARIOS.split(9)


def test_tools_and_resources_are_read_as_servers_write_them() -> None:
    tool = MCPTool.from_dict({"name": "look", "parameters": {"type": "object"}})
    assert tool.to_tool_schema()["function"] == {"name": "look", "description": "", "parameters": {"type": "object"}}
    resource = {"uri": "file:///a", "name": "", "description": "", "mimeType": "text/plain"}
    assert MCPResource.from_dict(resource).to_dict() == resource
