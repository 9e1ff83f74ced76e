"""Worlds that others made, as a scenario's tools.

    import gavel

    desk = gavel.Scenario(
        name="orders",
        system="You run the order desk.",
        tools=[gavel.mcp("python -m orders_server")],      # or gavel.mcp("https://mcp.example.com/mcp")
        tasks=[gavel.Task(user="Where is order 1001?")],
    )

Every episode gets a session of its own; what a server does wrong stays within the episode that met it.
"""
