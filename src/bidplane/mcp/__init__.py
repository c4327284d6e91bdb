"""
The Model Context Protocol: an agent's market as tools for a model. `server` has the tools, `limits`
what a model may spend, `http` serves them to holders of the agent's credential. Everything goes
through `client`, so that a model can do no more than the agent.
"""
