"""The judges of the service: one for each combination of model, orders and mode that requests ask for.

All share the cassette and the budget. Only models and modes that the settings name are allowed, so that no request
reaches an address of its own choice; rubric, criteria and reference travel with the group.
"""

from collections import OrderedDict
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _Settings:
    model: str | None
    """None = the configured judge."""
    orders: int
    mode: ModeName


class Judges:
    """Makes judges as requests ask for them, and keeps those used last."""

    def __init__(self, config: ServiceConfig, cassette: Cassette) -> None:
        """Raises `JudgeError` for settings that contradict each other."""
        self._config = config
        self._cassette = cassette
        self._judges: OrderedDict[_Settings, Judge] = OrderedDict()
        self._rubrics = config.read_rubrics()
        self._budget = Budget(config.judge.max_cost_usd, config.judge.max_tokens)
        self.default = self.of(JudgingOptions())

    def of(self, options: JudgingOptions) -> Judge:
        """The judge that a request asks for. Raises `InvalidRequestError` for one that is not allowed."""
        config = self._config.judge
        settings = _Settings(
            None if options.judge in (None, config.models) else options.judge,
            options.orders or config.orders,
            options.mode or config.mode,
        )
        if (judge := self._judges.get(settings)) is None:
            self._check(settings)
            judge = self._judges[settings] = self._build(settings)
        self._judges.move_to_end(settings)
        if len(self._judges) > _MAX_JUDGES:
            self._judges.popitem(last=False)
        return judge

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

    def _check(self, settings: _Settings) -> None:
        allowed, config = self._config.judges, self._config.judge
        if settings.model is not None and settings.model not in allowed:
            names = ", ".join(allowed) or "the service's own only"
            raise InvalidRequestError(
                f"the judge {settings.model!r} is not allowed here.",
                f"Allowed: {names}. Leave judge out, or add the model to the service's setting judges.",
            )
        if settings.orders > max(self._config.limits.orders, config.orders):
            raise InvalidRequestError(
                f"{settings.orders} orders are more than the {self._config.limits.orders} that are allowed.",
                "Ask for fewer, or raise the service's setting limits.orders.",
            )
        if settings.mode not in (config.mode, *self._config.modes):
            raise InvalidRequestError(
                f"the mode {settings.mode!r} is not allowed here.",
                f"Allowed: {', '.join(dict.fromkeys([config.mode, *self._config.modes]))}.",
            )

    def _build(self, settings: _Settings) -> Judge:
        config = self._config.judge.model_copy(update={"orders": settings.orders, "mode": settings.mode})
        if settings.model is not None:
            config = config.model_copy(update={"models": settings.model})
        own = config.cassette is not None or _asks_none(config)
        return config.build(cassette=None if own else self._cassette, budget=self._budget)


def _asks_none(config: JudgeConfig) -> bool:
    """Whether all judge models run in this process, and cost nothing."""
    named = config.models
    if isinstance(named, list):
        named = [one.build() if isinstance(one, JurorConfig) else one for one in named]
    models = [model for juror in jury(named) for model in juror.models]
    return all(isinstance(model, str) and model_id(model).startswith(f"{PROVIDER}/") for model in models)
