"""A part of ART that Gavel does not have: importing it stops with one sentence."""

from gavel.compat.art.errors import NotInGavelError

raise NotInGavelError("Gavel has no art.tinker_native", "Train with LocalBackend(), or with gavel train.")
