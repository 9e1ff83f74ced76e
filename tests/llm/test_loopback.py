"""Which addresses are this machine's own."""

import pytest

from gavel.llm.loopback import is_loopback, is_on_this_machine


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "::1"])
def test_these_are_this_machine(host: str) -> None:
    assert is_loopback(host)
    assert is_on_this_machine(f"http://[{host}]:80/v1" if ":" in host else f"https://{host}:80/v1")


@pytest.mark.parametrize("host", ["", "gpu-box", "10.0.0.1", "localhost.example.com", "127.0.0.1.example.com"])
def test_these_are_not(host: str) -> None:
    assert not is_loopback(host)
    assert not is_on_this_machine(f"http://{host}:80")


def test_what_is_no_address_is_not_this_machine() -> None:
    assert not is_on_this_machine("http://[::1")
