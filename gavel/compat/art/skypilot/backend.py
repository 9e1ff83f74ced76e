"""ART's backend in a cloud by SkyPilot, where ART's scripts import it from: it stops with one sentence."""

from gavel.compat.art.skypilot import SkyPilotBackend as SkyPilotBackend
