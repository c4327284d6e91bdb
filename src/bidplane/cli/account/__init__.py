"""Commands about agents, planes and money."""
