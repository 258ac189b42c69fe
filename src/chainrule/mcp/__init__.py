"""Components as tools for language models, by the Model Context Protocol over standard input and output.

serve_stdio   offer components as tools until standard input ends

`_server` has the tools of components, their calls in worker processes, and values in the words of JSON.
"""

from chainrule.mcp._server import serve_stdio

__all__ = ["serve_stdio"]
