"""The module in which ART defines it."""

from gavel.compat.art.mcp import complete_task_tool as complete_task_tool
