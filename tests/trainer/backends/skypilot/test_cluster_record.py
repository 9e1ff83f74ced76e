"""What is remembered of a cluster, and who may read it."""

import stat
from pathlib import Path

import pytest
from pydantic import SecretStr

from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
from gavel.trainer.backends.skypilot.cluster_settings import ClusterError

KEY = "a-key-that-nobody-sees"


def a_record(cluster: str = "gavel") -> ClusterRecord:
    return ClusterRecord(cluster=cluster, key=SecretStr(KEY), port=8090, machines={"num_nodes": 1})


def test_a_record_comes_back_and_is_the_user_s_alone(state: Path) -> None:
    a_record().save()
    a_record().model_copy(update={"job": 3}).save()
    a_record("other").save()
    (file, _) = sorted((state / "clusters").iterdir())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    found = ClusterRecord.find("gavel")
    assert found is not None
    assert (found.key.get_secret_value(), found.job, found.machines) == (KEY, 3, {"num_nodes": 1})
    assert [record.cluster for record in ClusterRecord.all()] == ["gavel", "other"]
    found.delete()
    found.delete()
    assert ClusterRecord.find("gavel") is None


def test_a_key_is_in_no_text_of_a_record() -> None:
    assert KEY not in repr(a_record()) + str(a_record())


@pytest.mark.parametrize("content", ["", "{", "[]", f'{{"key": "{KEY}"}}'])
def test_a_broken_record_says_what_to_do_and_not_what_it_holds(state: Path, content: str) -> None:
    (state / "clusters").mkdir()
    (state / "clusters" / "gavel.json").write_text(content)
    with pytest.raises(ClusterError, match=r"(?s)is not what Gavel wrote.*gavel cluster down gavel") as told:
        ClusterRecord.find("gavel")
    assert KEY not in str(told.value)
    assert told.value.__cause__ is None
