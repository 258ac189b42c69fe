"""Jobs: calls that outlive the connection that asked for them.

_record     what is known of a job
_store      jobs on disk
_live       jobs that are not over, and who listens to them
_log        what jobs print
_runner     from the queue through a worker to an end
_front      requests become jobs, jobs become answers
_results    stored answers in the format that is asked for
_routes     the HTTP interface
"""

from chainrule.serve._jobs._routes import JobFront, job_routes
from chainrule.serve._jobs._runner import Jobs, to_standard_error

__all__ = ["JobFront", "Jobs", "job_routes", "to_standard_error"]
