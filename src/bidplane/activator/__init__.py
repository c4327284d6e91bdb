"""
The activator: requests for services that may sleep.

`activator` follows the Endpoints on the host and dispatches requests; an `endpoints.LiveEndpoint`
is one of them: open while a pod that answers is known, else it holds requests and demands a wake.
Where there are several activators, a `joined.JoinedEndpoint` takes part in their decisions, and
`members` says who leads. `load` counts requests, `probing` finds out when a pod answers, `waiting`
is the page that a browser gets meanwhile. Bytes are passed on by `http.proxy`; decisions are
`core.activation`'s. It talks to nothing but the host's API and pods.
"""
