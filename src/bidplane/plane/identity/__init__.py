"""
Who a request is from and what it may do, in one plane: roles (`access`), tokens of service accounts
(`accounts`), client certificates (`signing`). Reads roles and accounts of the plane; keys are
`runtime.identity`'s.
"""
