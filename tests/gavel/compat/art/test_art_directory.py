"""Links to checkpoints under the names that ART gives them."""

from pathlib import Path

from gavel.compat.art.art_directory import link_checkpoints


def test_links_follow_the_checkpoints(tmp_path: Path) -> None:
    saved, links = tmp_path / "p" / "m" / "checkpoints", tmp_path / "p" / "models" / "m" / "checkpoints"
    assert link_checkpoints(saved, links) is None
    for step in (1, 12):
        (saved / f"{step:06d}").mkdir(parents=True)
    assert link_checkpoints(saved, links) == links / "0012"
    (saved / "000012" / "adapter").write_text("x")
    assert (links / "0012" / "adapter").read_text() == "x"
    (saved / "000001").rmdir()
    link_checkpoints(saved, links)
    assert [entry.name for entry in links.iterdir()] == ["0012"]
