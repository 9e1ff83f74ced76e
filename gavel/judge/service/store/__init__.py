"""The service's database: SQLite, or PostgreSQL shared by several processes."""
