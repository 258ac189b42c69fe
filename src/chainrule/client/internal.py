"""What other packages of this project use of `client`; no promise to users.

Answer               status, media type and body of an answer
Change               one difference between two interfaces
Dispatcher           hands out the replicas of a pool to calls
HttpTransport        the transport to a server
InterfaceField       one field of an interface
PoolTransport        replicas of one component as one transport
Replica              one copy of a component that a pool sends calls to
ReplicaLostError     a replica died, so a call gets no answer
Server               a server's status and its jobs
SubprocessTransport  the transport to a process of its own
Supervisor           threads that start the replicas of a pool again
bad_requirements     what to raise about a file of requirements
compare_interfaces   what a newer interface of a component changes for callers
fingerprint          a digest of nested data
project_dependencies  the dependencies in a pyproject.toml
read_answer          the result that an answer carries, or the exception that it stands for
read_interface       the fields of one side of an interface, by path
read_toml            the content of a TOML file
requirements_file    the file that says what a component needs
"""

from chainrule.client._bodies import Answer, read_answer
from chainrule.client._compatibility import (
    Change,
    InterfaceField,
    compare_interfaces,
    read_interface,
)
from chainrule.client._environment import (
    bad_requirements,
    project_dependencies,
    read_toml,
    requirements_file,
)
from chainrule.client._http import HttpTransport
from chainrule.client._pool import (
    Dispatcher,
    PoolTransport,
    Replica,
    ReplicaLostError,
    Supervisor,
    fingerprint,
)
from chainrule.client._server import Server
from chainrule.client._subprocess import SubprocessTransport

__all__ = [
    "Answer",
    "Change",
    "Dispatcher",
    "HttpTransport",
    "InterfaceField",
    "PoolTransport",
    "Replica",
    "ReplicaLostError",
    "Server",
    "SubprocessTransport",
    "Supervisor",
    "bad_requirements",
    "compare_interfaces",
    "fingerprint",
    "project_dependencies",
    "read_answer",
    "read_interface",
    "read_toml",
    "requirements_file",
]
