"""Text from elsewhere, made fit for a terminal."""

from rich.text import Text


def plain(text: str, style: str = "") -> Text:
    """What judges, trajectories and files say may hold markup and control sequences; here they are only characters."""
    return Text("".join(character if character.isprintable() else " " for character in text), style)
