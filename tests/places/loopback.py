"""A Ray cluster on the loopback address, in a process of its own, which obeys the words on its standard input.

`add NAME [PYTHONPATH]` starts a node with one CPU, `kill NAME` ends it without a farewell. Each is answered by a line.
"""

import os
import sys
from typing import Any

from ray.cluster_utils import Cluster

PLACE: dict[str, Any] = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}


def main(client_port: int) -> None:
    """Starts a head without CPUs, prints its address, and obeys until the input ends."""
    head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": client_port, **PLACE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes: dict[str, Any] = {}
    print(cluster.address, flush=True)
    for line in sys.stdin:
        word, name, *path = line.split()
        if word == "add":
            more = {"env_vars": {"PYTHONPATH": path[0]}} if path else {}
            nodes[name] = cluster.add_node(num_cpus=1, **PLACE, **more)
        else:
            cluster.remove_node(nodes.pop(name), allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    main(int(sys.argv[1]))
