"""Components in a Slurm job: a batch script that starts servers, and handles to them.

batch_script     the text of the script, for `sbatch`
SlurmJob         what the job asks for
read_registry    a `Component` for every server of a job

The servers announce themselves on their standard output, which `srun` brings to the batch script; the token
that callers need goes to the nodes by `sbcast`. Nothing waits for files to appear.
"""

from chainrule.deploy.slurm._registry import read_registry
from chainrule.deploy.slurm._script import SlurmJob, batch_script

__all__ = ["SlurmJob", "batch_script", "read_registry"]
