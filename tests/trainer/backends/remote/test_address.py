"""Addresses and keys are checked before anything is sent, and what is told of them holds no secret."""

import pytest

from gavel.trainer.backends.remote.wire import RemoteBackendError, checked_key, checked_url


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("http://127.0.0.1:8090/", "http://127.0.0.1:8090"),
        (" http://127.0.0.1:8090\n", "http://127.0.0.1:8090"),
        ("HTTP://Gpu-Box:8090", "http://gpu-box:8090"),
        ("http://[::1]:8090", "http://[::1]:8090"),
        ("https://gpu.example.com/gavel//", "https://gpu.example.com/gavel"),
    ],
)
def test_an_address_is_taken_as_it_is_meant(given: str, expected: str) -> None:
    assert checked_url(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        *("", "gpu-box:8090", "http://", "ftp://gpu-box", "http://[::1", "http://gpu-box:99999", "http://gpu box"),
        *("//gpu-box:8090", "http://:8090", "http://gpu-box?key=1", "http://gpu-box#here", "file:///tmp", "\x00"),
    ],
)
def test_what_is_no_address_is_told(given: str) -> None:
    with pytest.raises(RemoteBackendError, match=r"(?s)is no address.*GAVEL_BACKEND_URL"):
        checked_url(given)


def test_a_host_without_http_before_it_is_told_as_it_was_meant() -> None:
    with pytest.raises(RemoteBackendError) as told:
        checked_url(" gpu-box:9000 ")
    assert told.value.remedy.endswith("http://gpu-box:9000")


@pytest.mark.parametrize(
    "given",
    ["http://me:planted-secret@gpu-box:8090", "http://me:planted-secret@gpu box", "http://gpu-box?key=planted-secret"],
)
def test_a_password_in_an_address_is_refused_and_not_told(given: str) -> None:
    with pytest.raises(RemoteBackendError) as told:
        checked_url(given)
    assert "planted-secret" not in str(told.value)


def test_a_key_is_taken_without_the_line_s_end() -> None:
    assert checked_key("  a-key\r\n") == "a-key"


@pytest.mark.parametrize(
    "given", ["planted\nsecret", "planted secret", "plantedsécret", "planted\x00secret", "密planted"]
)
def test_a_key_that_no_header_holds_is_told_without_it(given: str) -> None:
    with pytest.raises(RemoteBackendError, match="openssl rand") as told:
        checked_key(given)
    assert "planted" not in str(told.value)


def test_an_empty_key_is_told() -> None:
    with pytest.raises(RemoteBackendError, match="GAVEL_BACKEND_KEY"):
        checked_key(" \n")
