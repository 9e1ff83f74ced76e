"""verifiers: the judge as its reward, and its environments as scenarios.

    gavel evaluate "verifiers:gsm8k?harness=null" --models openai/gpt-5-mini

Written against verifiers 0.4.0: an environment plays a task of its taskset with a harness, a program that asks an
OpenAI-compatible endpoint.
"""

import lazy_loader

_OFFERED = {"reward": ["finalize"]}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_OFFERED)
