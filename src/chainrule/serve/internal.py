"""What other packages of this project use of `serve`; no promise to users.

An engine of its own, such as pools on a cluster, extends `Pool` and is made by a `MakePool`.

Answerer              answers calls with a component: bytes in, bytes out
Call                  one undecoded request to one endpoint
CallError             a call that got no answer from the component
ENDPOINT_OF           the endpoint that answers a route of UM-Bridge
Cancelled             raised in author code whose answer is not wanted any more
ErrorStream           takes what author code prints to standard error, without control characters
Facts                 what a server says about a component without asking it again
MakePool              makes the pool of a component, from its source and settings
Pool                  what answers the calls of a component: base class of engines
Reply                 one encoded answer
WorkerPool            the pool of worker processes on this machine
WorkerState           what one worker does, for `/status`
add_option_arguments  adds a flag for every field of `ServeOptions` to a parser
following_in_thread   passes the progress and log lines of a call on a thread on to its watcher
no_address            the error of a server that cannot listen where it was told to
option_table          the fields of `ServeOptions` in Markdown
problem_reply         the reply for an error
static_file           one of the files that make up a page
"""

from chainrule.serve._answering import Answerer
from chainrule.serve._app import MakePool
from chainrule.serve._calls import Call, CallError, Cancelled, Facts, Reply
from chainrule.serve._logs import ErrorStream
from chainrule.serve._options import add_option_arguments, option_table
from chainrule.serve._page import static_file
from chainrule.serve._pool import Pool, WorkerPool, WorkerState
from chainrule.serve._problems import problem_reply
from chainrule.serve._run import no_address
from chainrule.serve._umbridge import ENDPOINT_OF
from chainrule.serve._worker_handles import following_in_thread

__all__ = [
    "ENDPOINT_OF",
    "Answerer",
    "Call",
    "CallError",
    "Cancelled",
    "ErrorStream",
    "Facts",
    "MakePool",
    "Pool",
    "Reply",
    "WorkerPool",
    "WorkerState",
    "add_option_arguments",
    "following_in_thread",
    "no_address",
    "option_table",
    "problem_reply",
    "static_file",
]
