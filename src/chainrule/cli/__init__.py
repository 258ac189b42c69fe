"""The command line `chainrule`.

Results go to standard output and nothing else does; logs, error messages and everything that a component
prints go to standard error. Exit codes: 0 success, 1 the component failed, 2 the input or usage was wrong.

Modules, in reading order:

    _main       which commands there are, and how one is found and run
    _output     results, tables and errors on standard output and standard error
    _sources    the component or server that a command is about
    _payload    the payload of a call
    _debugging  `--debug-port`
    _call       apply, call
    _describe   check, inspect, schema, diff
    _testing    check-gradients, record, test
    _order      order
    _init       init
    _serve      serve
    _mcp        mcp
    _jobs       job list, show, logs, cancel
    _watch      top, dashboard
    _images     image build, run, push, list, ps, logs, stop; search
    _deploy     deploy slurm, kubernetes, alerts, grafana
    _completion completion
    internal    what the tools of this project use
"""

from chainrule.cli._main import main

__all__ = ["main"]
