"""
The agent controller: gives each `Agent` a namespace on the host and a plane, and removes them in
order. Writes Agents' status and its own finalizer, Namespaces, and deletions on the host.
"""

from bidplane.controllers.agent.controller import AgentController

__all__ = ["AgentController"]
