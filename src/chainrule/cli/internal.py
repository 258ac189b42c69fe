"""What the tools of this project use of `cli`; no promise to users.

COMMANDS      name → command: its arguments, one line of help, and an example
find_command  the command that some words begin with, and the words after it
help_of       the help of an argument, with its default
make_parser   the parser of the arguments of a command
"""

from chainrule.cli._main import COMMANDS, find_command, help_of, make_parser

__all__ = ["COMMANDS", "find_command", "help_of", "make_parser"]
