"""The module in which ART defines them."""

from gavel.compat.art.langgraph import init_chat_model as init_chat_model
from gavel.compat.art.langgraph import wrap_rollout as wrap_rollout
