"""Gavel: an LLM judge as the reward, and a GRPO LoRA trainer for agents that use tools.

    import gavel

    judged = await gavel.ruler_score_group(group, "openai/gpt-5-mini")
    await model.train([judged])

The public names are those of the stub `__init__.pyi`, each loaded from its module on first use: `import gavel` loads no
model library, and a script that only judges never loads torch.
"""

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("gavel-rl")
    try:
        value = _load(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "gavel"):
            raise
        from gavel.base.extras import MissingExtraError

        raise MissingExtraError(f"gavel.{name}", missing, "train") from error
    globals()[name] = value
    return value
