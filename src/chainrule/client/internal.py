"""What other packages of this project use of `client`; no promise to users."""

from chainrule.client._answers import Answer, read_answer
from chainrule.client._component import Component
from chainrule.client._http import HttpTransport
from chainrule.client._server import JobEvent, JobInfo, Server
from chainrule.client._subprocess import SubprocessTransport

__all__ = [
    "Answer",
    "Component",
    "HttpTransport",
    "JobEvent",
    "JobInfo",
    "Server",
    "SubprocessTransport",
    "read_answer",
]
