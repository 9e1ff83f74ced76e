"""The type of backends, where ART's scripts import it from."""

from gavel.compat.art.model import Backend as Backend
