"""One Ray cluster of three nodes for a whole test run: a pytest plugin of the inner run of `test_ray.py`."""

import warnings

import pytest


@pytest.fixture(scope="session")
def ray_cluster():
    """A head without room for replicas, and two nodes that each have room for all."""
    import ray
    from ray.cluster_utils import Cluster

    sizes = {"object_store_memory": 80 * 1024 * 1024}
    quick = {
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 4,
        "prestart_worker_first_driver": False,
    }
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args={**head, **sizes})
    for _ in range(2):
        cluster.add_node(num_cpus=16, **sizes)
    ray.init(address=cluster.address, namespace="tests", log_to_driver=False)
    yield cluster
    ray.shutdown()
    with warnings.catch_warnings():
        # Ray leaves the ends of pipes to its processes open.
        warnings.simplefilter("ignore", ResourceWarning)
        cluster.shutdown()
