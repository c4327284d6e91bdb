"""
The controllers a Kubernetes has by itself, as decisions: what is there in, what to do out.

Each module is one kind and has one `plan`. A plan is carried out by
`controllers/workloads`; carrying out any part of it and planning again comes to the same
end.
"""
