"""Shipped scenarios, one package each; each package has a `scenario`."""
