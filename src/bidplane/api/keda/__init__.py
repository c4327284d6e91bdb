"""The kinds of KEDA's HTTP add-on, as its CRDs have them (`addon`). Structs only, as in `api`."""
