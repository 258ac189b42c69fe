"""Serve components over HTTP: `serve` runs a server, `create_app` gives the ASGI application.

The event loop only moves bytes. Author code runs in supervised worker processes (or, with `workers=0`, in
one thread): a worker that crashes or hangs is replaced, its caller gets an error with a code, and other
callers are not affected.

A request takes one way, for every number of workers, encoding and transport. The modules, in the order in
which it passes them:

_options         settings of a server: one table
_run             the application on uvicorn, from start to an orderly stop
_connections     limits on HTTP connections
_security        which callers are allowed: the holders of tokens, their limits, and what they have used
_watched_files   files that are read again when they change
_logs            the access log, and the output of workers
_app             components in, routes out
_endpoint        `POST /<endpoint>`: reads the body, asks the pool, sends the reply
_same_host       bodies in the shared memory of clients on the same host
_calls           what passes between the layers: a call as bytes, a reply as bytes
_pool            the queue and the workers of one component, and what is counted
_merging         several calls of `apply` answered by one
_worker_handles  a worker as the server sees it: a process, or a thread
_worker          a worker process, from the inside
_server_endpoints  endpoints beside the component's: check_gradients, minimize, plot
_answering       from the bytes of a call to the bytes of its reply
_devices         arrays on a GPU that stay there, in requests and answers
_problems        errors as `application/problem+json`

Beside it:

_jobs            calls that outlive the connection that asked for them
_metrics         `/ready`, `/status` and `/metrics`
_file_routes     files that callers upload and download
_page            the page of a component, and its description at `/docs`
_umbridge        the UM-Bridge protocol, in a worker; its routes are in _umbridge_routes
internal         what other packages of this project use
"""

from chainrule.serve._app import create_app
from chainrule.serve._options import ServeOptions
from chainrule.serve._run import serve

__all__ = ["ServeOptions", "create_app", "serve"]
