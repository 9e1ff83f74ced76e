"""A part of ART that Gavel does not have: importing it stops with one sentence."""

from gavel.compat.art.errors import NotInGavelError

raise NotInGavelError("Gavel has no art.utils.deployment", "Use gavel export, and serve the directory with vLLM.")
