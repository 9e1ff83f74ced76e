"""A part of ART that Gavel does not have: importing it stops with one sentence."""

from gavel.compat.art.errors import NotInGavelError

raise NotInGavelError("Gavel has no art.utils.old_benchmarking", "Read metrics.jsonl of the run directory.")
