"""verl: the judge as its reward, its datasets as scenarios, and scenarios as launchable verl directories.

compute_score = gavel.integrations.verl.compute_score("http://127.0.0.1:8080", n=8)
gavel train "verl:train.parquet?held_out=test.parquet&reward=reward.py:compute_score" --model Qwen/Qwen3-4B
gavel export-verl returns_desk --out desk-verl
"""

import lazy_loader

_OFFERED = {"reward": ["compute_score"], "scenario": ["verl_scenario"]}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_OFFERED)
