"""
The nouns: frozen structs that are also the schemas of our CRDs.

    agent, bid, lease, pool, endpoint   our kinds, a file each; also `gate/` and `idling/`
    shape                               GPUs as the market sells them
    reading, manifests                  objects to structs, and back
    views, objects                      names for fields of upstream's objects
    times, money                        texts for moments and amounts, both ways
    kinds, labels, crds                 coordinates, names of annotations, CustomResourceDefinitions
    http, keda                          answers over HTTP; the kinds of KEDA's add-on

Every layer may import it; it imports nothing but `errors`, and does no I/O.
"""
