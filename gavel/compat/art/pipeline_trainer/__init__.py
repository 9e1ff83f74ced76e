"""A part of ART that Gavel does not have: importing it stops with one sentence."""

from gavel.compat.art.errors import NotInGavelError

raise NotInGavelError("Gavel has no art.pipeline_trainer", "Train with LocalBackend(), or with gavel train.")
