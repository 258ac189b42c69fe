"""The command line `chainrule`.

Results go to standard output and nothing else does; logs, tables for errors and whatever a component prints
go to standard error. Exit codes: 0 it worked, 1 the component failed, 2 the input or usage was wrong.
"""

from chainrule.cli._main import main

__all__ = ["main"]
