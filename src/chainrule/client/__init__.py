"""Reach a component wherever it is: in this process, in its own, or behind a URL.

Component.from_api       in this process
Component.from_source    in a process of its own, with its own environment if wanted
Component.from_url       served by Chainrule or by a Tesseract
Component.from_urls      the same, on several servers
Component.from_image     in a container
Component.from_umbridge  a model behind a UM-Bridge server
Component.from_cluster   a pool of replicas on a Ray cluster
Job                      a call that is under way
ServerJob                the same, kept by a server: JobInfo is what it knows, JobEvent what happens
Outcome                  what came of one input of many
Transport                what to implement for another way

The modules, in reading order:

_component     `Component`, the handle: a constructor for each place where it may be, its facts, its calls
_transport     the interface of all transports, and the one within this process
_bodies        from arguments to a request, and from an answer to a result or an exception
_http          the transport to a server
_forward_passes  which inputs a server has kept for derivatives
_connections   HTTP/1.1 connections: addresses, deadlines, limits
_same_host     large bodies in shared memory, where the server is on this host
_devices       arrays on a GPU that stay there, where the component is on this host
_subprocess    the transport to a process of its own
_environment   the virtual environment of such a process
_jobs          calls in the background, and the progress bar
_pool          replicas of one component as one transport
_servers       several servers of one component as one transport
_server_keeping  whether these servers are up
_mapping       many inputs through one component
_server        a server's status and its jobs
_umbridge      models behind UM-Bridge servers
_compatibility  what a newer interface changes for callers
internal       what other packages of this project use
"""

from chainrule.client._component import Component
from chainrule.client._jobs import Job
from chainrule.client._mapping import Outcome
from chainrule.client._server import JobEvent, JobInfo, ServerJob
from chainrule.client._transport import Ticket, Transport

__all__ = [
    "Component",
    "Job",
    "JobEvent",
    "JobInfo",
    "Outcome",
    "ServerJob",
    "Ticket",
    "Transport",
]
