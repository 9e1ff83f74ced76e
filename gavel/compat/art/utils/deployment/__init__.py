"""A part of ART that Gavel does not have: its names can be imported, and stop with one sentence when they are used."""

from gavel.compat.art.missing import missing

__getattr__ = missing("art.utils.deployment", "Use gavel export, and serve the directory with vLLM.")
