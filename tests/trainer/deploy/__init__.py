"""Tests of deployments; `fakes` holds the stand-ins for paid hosts."""
