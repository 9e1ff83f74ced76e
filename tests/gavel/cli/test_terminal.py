"""Whatever is printed can be printed."""

import io
import sys

import pytest
from rich.console import Console

from gavel.cli import app
from gavel.cli.terminal import print_in_any_encoding


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("ascii", "2 groups - 0.5 +/- 0.1 ... >= 1 -> ? yes ??"),
        ("latin-1", "2 groups · 0.5 ± 0.1 ... >= 1 -> ü yes ??"),
        ("utf-8", "2 groups · 0.5 ± 0.1 … ≥ 1 → ü ✓ 包裹"),
    ],
)
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_signs_that_an_encoding_lacks_are_replaced(
    monkeypatch: pytest.MonkeyPatch, name: str, encoding: str, printed: str
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding))
    print_in_any_encoding()
    Console(stderr=name == "stderr").print("2 groups · 0.5 ± 0.1 … ≥ 1 → ü ✓ 包裹", soft_wrap=True)
    getattr(sys, name).flush()
    assert raw.getvalue().decode(encoding).strip() == printed


def test_a_full_disk_under_standard_output_is_one_plain_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(arguments: list[str]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(app, "app", full)
    monkeypatch.setattr(sys, "argv", ["gavel", "score"])
    with pytest.raises(SystemExit):
        app.main()
    assert "the output cannot be printed: No space left on device" in capsys.readouterr().err
