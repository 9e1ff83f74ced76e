"""The pages for people: `routes` answers them, `views` is what they show; templates and assets stand beside."""
