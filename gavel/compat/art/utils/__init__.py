"""ART's helpers for scripts."""

from gavel.compat.art.utils.format_message import format_message
from gavel.compat.art.utils.get_model_step import get_model_step
from gavel.compat.art.utils.iterate_dataset import iterate_dataset
from gavel.compat.art.utils.limit_concurrency import limit_concurrency
from gavel.compat.art.utils.log_http_errors import log_http_errors
from gavel.compat.art.utils.retry import retry
from gavel.compat.art.utils.strip_logprobs import strip_logprobs

__all__ = [
    "format_message",
    "get_model_step",
    "iterate_dataset",
    "limit_concurrency",
    "log_http_errors",
    "retry",
    "strip_logprobs",
]
