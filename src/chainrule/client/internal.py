"""What other packages of this project use of `client`; no promise to users.

Answer               status, media type and body of an answer
Caller               what makes calls: base class of transports and of replicas
HttpTransport        the transport to a server
Server               a server's status and its jobs
SubprocessTransport  the transport to a process of its own
read_answer          the result that an answer carries, or the exception that it stands for
"""

from chainrule.client._answers import Answer, read_answer
from chainrule.client._http import HttpTransport
from chainrule.client._server import Server
from chainrule.client._subprocess import SubprocessTransport
from chainrule.client._transport import Caller

__all__ = [
    "Answer",
    "Caller",
    "HttpTransport",
    "Server",
    "SubprocessTransport",
    "read_answer",
]
