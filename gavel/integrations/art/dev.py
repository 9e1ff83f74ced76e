"""ART's experimental settings, as the dicts that scripts build.

Keys with a counterpart are translated (see docs/art.md); every other key is reported once and has no effect.
"""

from typing import Any

InternalModelConfig = dict[str, Any]
"""The argument `TrainableModel(_internal_config=…)`: init_args, engine_args, peft_args, trainer_args and more."""
InitArgs = EngineArgs = PeftArgs = TrainerArgs = dict[str, Any]
TinkerArgs = TinkerNativeArgs = TinkerTrainingClientArgs = dict[str, Any]
ServerArgs = OpenAIServerConfig = dict[str, Any]
TrainConfig = TrainSFTConfig = dict[str, Any]
