"""
The parts that controllers are built of: clock, work queue, informers, caches of planes, Events.
"""
