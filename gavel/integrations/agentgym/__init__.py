"""AgentGym: environments behind its HTTP protocol, scenarios served to its clients, and AgentTraj files."""
