"""Images in the messages of a trainer, as the judge reads them.

    {"type": "image", "image": <PIL image>}  ->  {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}

Trainers hold decoded images; a message that is sent or stored holds their bytes.
"""

import base64
import io
import sys
from typing import Any, cast

from gavel.llm.types import Message


def with_image_urls(message: Message) -> Message:
    """The message with each block of a decoded image as a data URL; any other passes unchanged."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    blocks = [_block(block) for block in cast(list[Any], content)]
    return {**message, "content": blocks}


def _block(block: Any) -> Any:
    if not isinstance(block, dict) or cast(Message, block).get("type") != "image":
        return cast(Any, block)
    image = cast(Message, block).get("image")
    url = image if isinstance(image, str) and image.startswith(("data:", "http://", "https://")) else _encoded(image)
    return cast(Any, block) if url is None else {"type": "image_url", "image_url": {"url": url}}


def _encoded(image: Any) -> str | None:
    """The image as a data URL; None for what is no image of PIL."""
    pil = sys.modules.get("PIL.Image")  # who holds one has imported it
    if pil is None or not isinstance(image, pil.Image):
        return None
    png = io.BytesIO()
    image.save(png, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
