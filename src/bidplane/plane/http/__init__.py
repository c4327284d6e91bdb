"""
Planes over HTTP: paths, credentials, bodies and answers around the verbs.

`app` finds the plane, `auth` the user, `objects` the verb; `message` reads bodies, `forms` writes
answers, `documents` has discovery and OpenAPI. `streams` and `podstreams` are answers without an
end, `reviews` answers without an object. No verb knows that it was asked over HTTP.
"""

from bidplane.plane.http.app import serve

__all__ = ["serve"]
