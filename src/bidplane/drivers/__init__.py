"""
Drivers make and end planes, for the agent controller: `embedded` hosts them in this process,
through the `plane` that it is given. A driver knows nothing of agents' work or money.
"""
