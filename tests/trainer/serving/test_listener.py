import socket
from contextlib import closing

import pytest

from gavel.trainer.serving.errors import EndpointError
from gavel.trainer.serving.listener import address_of, listen


def test_an_address_of_ipv6_stands_in_brackets():
    if not socket.has_ipv6:
        pytest.skip("there is no IPv6 here")
    try:
        listener = listen("::1", 0)
    except EndpointError:
        pytest.skip("there is no IPv6 here")
    with closing(listener):
        assert address_of(listener, "::1") == f"http://[::1]:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("host", "port", "remedy"),
    [
        ("127.0.0.1", 70_000, "choose another port"),
        ("no.such.host.invalid", 0, "an address of this machine"),
        ("192.0.2.1", 0, "an address of this machine"),
    ],
)
def test_what_cannot_be_listened_on_is_refused_with_a_remedy(host, port, remedy):
    with pytest.raises(EndpointError, match="cannot listen on") as caught:
        listen(host, port)
    assert remedy in caught.value.remedy


def test_a_taken_port_is_refused():
    with closing(listen("127.0.0.1", 0)) as listener, pytest.raises(EndpointError, match="in use"):
        listen("127.0.0.1", listener.getsockname()[1])
