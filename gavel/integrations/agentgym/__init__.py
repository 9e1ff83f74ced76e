"""AgentGym: its HTTP environments as scenarios, scenarios served to its clients, and AgentTraj files."""
