import pytest

from gavel.trainer.deploy.host import open_host
from gavel.trainer.deploy.record import DeployError


def test_an_unknown_host_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(DeployError, match="there is no host 'tgether'") as refusal:
        open_host("tgether")
    assert "together" in refusal.value.remedy
