"""Serve components over HTTP: `serve` runs a server, `create_app` gives the ASGI application.

The event loop only moves bytes. Author code runs in supervised worker processes (or, with `workers=0`, in
one thread): a worker that crashes or hangs is replaced, its caller gets an error with a code, and nobody
else notices.
"""

from chainrule.serve._app import create_app
from chainrule.serve._options import ServeOptions
from chainrule.serve._run import serve

__all__ = ["ServeOptions", "create_app", "serve"]
