"""Jobs: calls that outlive the connection that asked for them.

_routes     over HTTP: requests become jobs, jobs become answers
_runner     from the queue through a worker to an end
_live       jobs that are not over: queue, state, listeners, output
_store      jobs on disk
"""

from chainrule.serve._jobs._routes import JobReplies, job_routes, with_server_routes
from chainrule.serve._jobs._runner import Jobs

__all__ = ["JobReplies", "Jobs", "job_routes", "with_server_routes"]
