"""Components as tools for language models, by the Model Context Protocol over standard input and output.

serve_stdio   offer components as tools until standard input ends

Modules, in reading order:

    _server    the tools of components, and their calls in worker processes
    _values    values and schemas in the words of JSON; large arrays in files
"""

from chainrule.mcp._server import serve_stdio

__all__ = ["serve_stdio"]
