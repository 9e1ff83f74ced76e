"""Parses the judge's reply into scores by label, or an error that the judge can repair."""
