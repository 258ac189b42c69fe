"""Reach a component wherever it is: in this process, in its own, or behind a URL.

Component.from_api       in this process
Component.from_source    in a process of its own, with its own environment if wanted
Component.from_url       served by Chainrule or by a Tesseract
Component.from_cluster   a pool of replicas on a Ray cluster
Job                      a call that is under way
ServerJob                the same, kept by a server: JobInfo is what it knows, JobEvent what happens
Outcome                  what came of one input of many
Transport                what to implement for another way
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
