"""The judges of the service: one for each combination of model, orders and mode that requests ask for.

All share the cassette and the budget. Only models and modes that the settings name are allowed, so that no request
reaches an address of its own choice; rubric, criteria and reference travel with the group.
"""

from functools import lru_cache

from gavel.judge.config import JudgeConfig, JurorConfig
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import jury
from gavel.judge.panel.modes import ModeName
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.errors import InvalidRequestError
from gavel.judge.service.schemas.bodies import JudgingOptions
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette
from gavel.llm.providers import PROVIDER, model_id

_MAX_JUDGES = 64


class Judges:
    """Makes judges as requests ask for them, and keeps those used last."""

    def __init__(self, config: ServiceConfig, cassette: Cassette) -> None:
        """Raises `JudgeError` for settings that contradict each other."""
        self._config = config
        self._cassette = cassette
        self._rubrics = config.read_rubrics()
        self._budget = Budget(config.judge.max_cost_usd, config.judge.max_tokens)
        self._made = lru_cache(_MAX_JUDGES)(self._make)
        self.default = self.of(JudgingOptions())

    def of(self, options: JudgingOptions) -> Judge:
        """The judge that a request asks for. Raises `InvalidRequestError` for one that is not allowed."""
        config = self._config.judge
        model = None if options.judge == config.models else options.judge
        return self._made(model, options.orders or config.orders, options.mode or config.mode)

    def rubric(self, options: JudgingOptions) -> str | None:
        """The text of the request's preset; None when it names none. Raises `InvalidRequestError`."""
        if options.preset is None:
            return None
        if options.rubric is not None:
            raise InvalidRequestError("a request has a rubric or a preset, not both.", "Leave one of them out.")
        if (text := self._rubrics.get(options.preset)) is None:
            names = ", ".join(self._rubrics) or "none"
            raise InvalidRequestError(
                f"there is no rubric preset {options.preset!r}.",
                f"There are: {names}. Presets are the service's setting rubrics; or send the text as rubric.",
            )
        return text

    def _make(self, model: str | None, orders: int, mode: ModeName) -> Judge:
        """`model`: None = the configured judge."""
        allowed, config = self._config.judges, self._config.judge
        modes = dict.fromkeys([config.mode, *self._config.modes])
        if model is not None and model not in allowed:
            names = ", ".join(allowed) or "the service's own only"
            raise InvalidRequestError(
                f"the judge {model!r} is not allowed here.",
                f"Allowed: {names}. Leave judge out, or add the model to the service's setting judges.",
            )
        if orders > max(self._config.limits.orders, config.orders):
            raise InvalidRequestError(
                f"{orders} orders are more than the {self._config.limits.orders} that are allowed.",
                "Ask for fewer, or raise the service's setting limits.orders.",
            )
        if mode not in modes:
            raise InvalidRequestError(f"the mode {mode!r} is not allowed here.", f"Allowed: {', '.join(modes)}.")
        config = config.model_copy(update={"orders": orders, "mode": mode, "models": model or config.models})
        own = config.cassette is not None or _asks_none(config)
        return config.build(cassette=None if own else self._cassette, budget=self._budget)


def _asks_none(config: JudgeConfig) -> bool:
    """Whether all judge models run in this process, and cost nothing."""
    named = config.models
    if isinstance(named, list):
        named = [one.build() if isinstance(one, JurorConfig) else one for one in named]
    models = [model for juror in jury(named) for model in juror.models]
    return all(isinstance(model, str) and model_id(model).startswith(f"{PROVIDER}/") for model in models)
