"""
Commands of people who operate the fleet: `user`, `proposals`, `audit`, `idle`, and `pilot`, which
runs the pilot (`flying` joins its parts). What they may do, the gate decides by the sender's
credential.
"""
