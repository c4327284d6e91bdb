"""
The simulator: the installation under a virtual clock, and weeks of jobs under several policies.
"""
