"""
Admission: what applies before a plane stores an object.

Defaults, limits, quotas, the CEL rules of CRDs (`rules`; their times, names and costs beside it),
`policies/`, and the gate for changes of the host (`changes`). A step reads the plane, and changes
only the object at hand.
"""
