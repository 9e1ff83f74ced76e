"""verifiers, both ways: the judge as its reward, its environments as scenarios, and scenarios as its tasksets.

    gavel evaluate "verifiers:gsm8k?harness=null" --models openai/gpt-5-mini
    gavel export-env returns_desk desk/            # a package with a taskset and a harness: pip install -e desk/

Written against verifiers 0.4.0: an environment plays a task of its taskset with a harness, a program that asks an
OpenAI-compatible endpoint.
"""

import lazy_loader

_OFFERED = {"reward": ["finalize", "rubric_func"], "environment": ["verifiers_environment"]}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_OFFERED)
