"""The HTML pages: `routes` serves them, `views` prepares their data; templates and assets stand beside."""
