"""
Admission: the defaults, limits, quotas, CEL rules and policies that apply before a plane stores an
object.
"""
