"""TRL: the judge as a reward function of its GRPOTrainer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"reward": ["reward_func"]})
