"""Keys and values for a forward pass, by the name that the installed transformers has for them."""

import inspect
from typing import Any


def cached(model: Any, cache: Any) -> dict[str, Any]:
    """The keyword argument that hands `cache` to a model: `cache` from transformers 5.24 on, `past_key_values` before.

    A model whose code is not of transformers may have kept the earlier name.
    """
    renamed = "cache" in inspect.signature(model.forward).parameters
    return {"cache" if renamed else "past_key_values": cache}
