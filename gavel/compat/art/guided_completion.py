"""A part of ART that Gavel does not have: its names can be imported, and stop with one sentence when they are used."""

from gavel.compat.art.missing import missing

__getattr__ = missing("art.guided_completion", "Ask for the wanted form in the prompt, and let the judge rate it.")
