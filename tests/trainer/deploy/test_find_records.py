from pathlib import Path

import pytest

from gavel.trainer.deploy.record import AdapterFacts, DeployError, find_records, open_record


def test_records_are_found_by_run_by_id_and_all(run: Path, adapter: AdapterFacts) -> None:
    root = run.parents[1]
    assert find_records(root, None) == []
    record = open_record(run, host="vllm", address="vllm:http://a", adapter=adapter, options={})
    record.save()
    for named in ("desk/clerk", str(run), None):
        assert [each.id for each in find_records(root, named)] == [record.id]
    assert [each.id for each in find_records(root, record.id, by_id=True)] == [record.id]
    with pytest.raises(DeployError, match="no deployment or run 'x'"):
        find_records(root, "x", by_id=True)
