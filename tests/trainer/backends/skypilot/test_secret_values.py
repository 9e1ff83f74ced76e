"""Secrets are named, found, and blotted out."""

import pytest

from gavel.trainer.backends.skypilot.cluster_settings import ClusterError, redacted, secret_values


def test_names_are_of_variables_here_and_a_mapping_has_its_own_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_1234567")
    assert secret_values(["HF_TOKEN"]) == {"HF_TOKEN": "hf_1234567"}
    assert secret_values({"HF_TOKEN": "other-value"}) == {"HF_TOKEN": "other-value"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
        (["hf-12345678"], "not named like"),
        ("hf_12345678", "one string"),
        ({"GAVEL_BACKEND_KEY": "12345678"}, "made for the cluster"),
    ],
)
def test_what_is_no_secret_is_refused_without_being_repeated(given: list[str], told: str) -> None:
    with pytest.raises(ClusterError, match=told) as refused:
        secret_values(given)
    assert "12345678" not in str(refused.value)


def test_longer_values_are_blotted_out_first_and_short_ones_stay() -> None:
    assert redacted("abcdefgh abcdef ab", ["abcdef", "abcdefgh", "ab"]) == "*** *** ab"
