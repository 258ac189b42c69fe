"""An optimisation that may be killed at any time, and goes on elsewhere.

spring          the component: a chain of springs
optimise        the driver: every evaluation is a job that is found again by its inputs
optimise.slurm  the driver as a Slurm job that is requeued
optimise.yaml   the driver as a Job of Kubernetes
"""
