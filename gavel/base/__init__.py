"""Base utilities without dependencies on the rest: errors with remedies, extras, secrets, loopback, text, files."""
