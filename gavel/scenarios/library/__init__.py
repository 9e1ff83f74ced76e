"""Shipped scenarios: one module each, with its `scenario` and, if scripted players exist, its `PLAYERS`."""
