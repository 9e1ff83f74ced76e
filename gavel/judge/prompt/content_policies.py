"""What is done with content that a judge cannot be shown, and with a group that leaves it nothing to compare."""

from typing import Literal

UnseenPolicy = Literal["unscored", "flag"]
"""A member with unseen content is unscored, or scored with the flag "unseen content"."""
ImagePolicy = Literal["auto", "send", "flag"]
"""Images are sent when LiteLLM knows that all judge models see them, always, or never (then they are unseen)."""
AlonePolicy = Literal["unscored", "scored"]
"""A group of one distinct attempt is unscored, or scored by itself."""
