"""Components in a Slurm job: a batch script that starts servers, and handles to them.

batch_script     the text of the script, for `sbatch`
SlurmJob         what the job asks for
read_registry    a `Component` for every server of a job

The servers write their URLs to standard output, which `srun` forwards to the batch script; `sbcast` copies
the token that callers need to the nodes. Nothing waits for files to appear.

Modules, in reading order:

    _job      the batch script, and handles from a job's registry
    _inside   what runs inside the job: servers, and collecting their URLs
"""

from chainrule.deploy.slurm._job import SlurmJob, batch_script, read_registry

__all__ = ["SlurmJob", "batch_script", "read_registry"]
