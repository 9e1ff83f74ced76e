"""Which addresses are this machine's own."""

import os
import socket

import pytest

from gavel.base.network import is_loopback, is_on_this_machine, past_proxies
from gavel.llm.client import Client
from tests.endpoint import says

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def proxy(monkeypatch):
    """A proxy of the environment that nobody answers at."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, NOBODY)
        monkeypatch.setenv(name.lower(), NOBODY)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "internal.example")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("model", ["openai/judge", "hosted_vllm/judge"])
async def test_a_judge_on_this_machine_is_asked_past_a_proxy(endpoint, proxy, host, model) -> None:
    endpoint.script = [lambda _: says("{}")]
    params = endpoint.params | {"api_base": endpoint.params["api_base"].replace("127.0.0.1", host)}
    reply = await Client(model, params).ask([{"role": "user", "content": "Hello"}], {"type": "object"})
    assert (reply.text, len(endpoint.requests)) == ("{}", 1)
    assert os.environ["NO_PROXY"].startswith("internal.example,")


@pytest.mark.parametrize(
    ("given", "extended"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "a, 127.0.0.1", "no_proxy": "b"}, "b,a,127.0.0.1,localhost,::1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_what_is_set_stays(given, extended) -> None:
    assert past_proxies(given) == {"NO_PROXY": extended, "no_proxy": extended}
    assert past_proxies(past_proxies(given)) == past_proxies(given)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "::1"])
def test_these_are_this_machine(host: str) -> None:
    assert is_loopback(host)
    assert is_on_this_machine(f"http://[{host}]:80/v1" if ":" in host else f"https://{host}:80/v1")


def test_a_server_at_all_addresses_is_asked_here_and_open_to_others() -> None:
    assert is_on_this_machine("http://0.0.0.0:8000/v1")
    assert is_on_this_machine(f"http://{socket.gethostname()}:8000/v1")
    assert not is_loopback("0.0.0.0")


@pytest.mark.parametrize("host", ["", "gpu-box", "10.0.0.1", "localhost.example.com", "127.0.0.1.example.com"])
def test_these_are_not(host: str) -> None:
    assert not is_loopback(host)
    assert not is_on_this_machine(f"http://{host}:80")


def test_what_is_no_address_is_not_this_machine() -> None:
    assert not is_on_this_machine("http://[::1")
