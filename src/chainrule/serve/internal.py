"""What other packages of this project use of `serve`; no promise to users."""

from chainrule.serve._answering import Answerer
from chainrule.serve._app import MakePool
from chainrule.serve._author_code import following_in_thread, only_here, reuse_residuals
from chainrule.serve._calls import Call, CallError, Cancelled, Facts, Reply, stopping, unavailable
from chainrule.serve._options import ServeOptions, add_option_arguments, option_table
from chainrule.serve._page import static_file
from chainrule.serve._pool import Pool, WorkerState
from chainrule.serve._problems import problem_reply
from chainrule.serve._run import no_address

__all__ = [
    "Answerer",
    "Call",
    "CallError",
    "Cancelled",
    "Facts",
    "MakePool",
    "Pool",
    "Reply",
    "ServeOptions",
    "WorkerState",
    "add_option_arguments",
    "following_in_thread",
    "no_address",
    "only_here",
    "option_table",
    "problem_reply",
    "reuse_residuals",
    "static_file",
    "stopping",
    "unavailable",
]
