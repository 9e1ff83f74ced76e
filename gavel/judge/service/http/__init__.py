"""The service over HTTP: the application, its routes and wires, and the checks on every request."""
