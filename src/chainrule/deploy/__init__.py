"""Components beyond one process: container images, jobs on a cluster, pools of replicas.

chainrule.deploy.images      build container images of components, and start them
chainrule.deploy.catalogue   images in a registry, found by what they take and return
chainrule.deploy.slurm       a batch script that starts servers within a Slurm job
chainrule.deploy.kubernetes  manifests for servers on Kubernetes
chainrule.deploy.monitoring  alerts for Prometheus, a dashboard for Grafana
chainrule.deploy.local       a pool of replicas on this machine
chainrule.deploy.ray         a pool of replicas on a Ray cluster

The two kinds of pool share what `chainrule.client.internal` has for pools, and `_scaling`: how many replicas
there are. `_registry` is what is needed of the protocol of OCI registries.
"""
