"""
One Kubernetes client protocol: `client`.

`http` speaks it to a server over HTTPS, `forwarding` is the base of clients that add to another,
`kubeconfig` makes a client of a file; `exec` runs a command in a pod, `survey` reads what a
diagnosis needs. May touch the network, through `http.client`, and files of credentials.
"""
