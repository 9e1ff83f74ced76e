"""The routes of the service, one file for each resource; app.py puts them together."""
