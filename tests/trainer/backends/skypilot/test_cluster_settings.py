"""What a user may choose of a cluster, and what follows from it."""

import pytest

from gavel.trainer.backends.skypilot.cluster_settings import ClusterError, ClusterSettings
from gavel.trainer.backends.skypilot.launch import cluster_settings


@pytest.mark.parametrize("minutes", [2, 3, 7, 30, 600])
def test_server_and_machines_together_are_idle_for_as_long_as_was_said(minutes: int) -> None:
    settings = ClusterSettings(idle_minutes_to_autostop=minutes)
    assert settings.server_idle_minutes + settings.last_minutes == minutes
    assert settings.server_idle_minutes >= 1
    assert 1 <= settings.last_minutes <= 5


def test_machines_are_stopped_where_they_can_be_and_deleted_elsewhere() -> None:
    assert not ClusterSettings().ends_machines
    assert not ClusterSettings(infra="gcp/us-central1").ends_machines
    for infra in ("k8s", "k8s/context", "slurm", "Kubernetes", "ssh/pool"):
        assert ClusterSettings(infra=infra).ends_machines
    assert ClusterSettings(use_spot=True).ends_machines
    assert not ClusterSettings(infra="k8s", down=False).ends_machines


@pytest.mark.parametrize("name", ["", "-a", "1a", "a b", "a;rm", "ä", "a" * 51, "../up", "a_b"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cluster: "):
        cluster_settings(cluster=name)


def test_an_unknown_option_is_named_and_values_are_not_repeated() -> None:
    with pytest.raises(ClusterError, match="acelerators") as refused:
        cluster_settings(acelerators="hf_very_secret")
    assert "hf_very_secret" not in str(refused.value)
