"""What other packages of this project use of `client`; no promise to users.

Answer               status, media type and body of an answer
Change               one difference between two interfaces
Caller               what makes calls: base class of transports and of replicas
HttpTransport        the transport to a server
InterfaceField       one field of an interface
Server               a server's status and its jobs
SubprocessTransport  the transport to a process of its own
compare_interfaces   what a newer interface of a component changes for callers
read_answer          the result that an answer carries, or the exception that it stands for
read_interface       the fields of one side of an interface, by path
"""

from chainrule.client._bodies import Answer, read_answer
from chainrule.client._compatibility import (
    Change,
    InterfaceField,
    compare_interfaces,
    read_interface,
)
from chainrule.client._http import HttpTransport
from chainrule.client._server import Server
from chainrule.client._subprocess import SubprocessTransport
from chainrule.client._transport import Caller

__all__ = [
    "Answer",
    "Caller",
    "Change",
    "HttpTransport",
    "InterfaceField",
    "Server",
    "SubprocessTransport",
    "compare_interfaces",
    "read_answer",
    "read_interface",
]
