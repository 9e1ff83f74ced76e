"""The command that installs an extra, by where Gavel itself came from."""

import json

import pytest

from gavel.base import extras


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'gavel-rl[train]'"),
        ({"url": "file:///src/gavel", "dir_info": {"editable": True}}, "pip install -e '/src/gavel[train]'"),
        ({"url": "file:///src/my%20gavel", "dir_info": {}}, "pip install '/src/my gavel[train]'"),
        (
            {"url": "file:///dist/gavel_rl-0.1.0-py3-none-any.whl", "archive_info": {}},
            "pip install '/dist/gavel_rl-0.1.0-py3-none-any.whl[train]'",
        ),
        (
            {"url": "https://host/gavel.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'gavel-rl[train] @ git+https://host/gavel.git@abc'",
        ),
        (
            {"url": "https://host/gavel_rl-0.1.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'gavel-rl[train] @ https://host/gavel_rl-0.1.0-py3-none-any.whl'",
        ),
    ],
)
def test_the_line_works_from_where_gavel_was_installed(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, line: str
) -> None:
    monkeypatch.setattr(extras, "_direct_url", lambda: json.dumps(origin) if origin else None)
    assert extras.install_line("train") == line
