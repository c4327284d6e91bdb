"""
Users of one plane and their rights: roles (`access`), tokens of service accounts (`accounts`),
client certificates (`signing`). Reads roles and accounts of the plane; keys are
`runtime.identity`'s.
"""
