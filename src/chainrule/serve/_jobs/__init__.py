"""Jobs: calls that outlive the connection that asked for them.

_routes     over HTTP: requests become jobs, jobs become answers
_runner     from a store through a worker to an end
_live       jobs that are not over: state, listeners, output
_store      what a job is, and what a store of jobs promises
_files      the jobs of one server, in a folder
_postgres   the jobs of several servers, in a database
_statements its tables, and the statements that change them
_objects    large bodies beside a database
"""

from chainrule.serve._jobs._routes import JobReplies, job_routes, with_server_routes
from chainrule.serve._jobs._runner import Jobs

__all__ = ["JobReplies", "Jobs", "job_routes", "with_server_routes"]
