"""A Ray cluster of real node processes on this machine: python nodes.py NODES CPUS.

Prints its address as a JSON line and ends when standard input closes.
"""

from __future__ import annotations

import json
import sys

from ray.cluster_utils import Cluster


def main(nodes: int, cpus: int) -> None:
    """Start, report, wait, end."""
    options = {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    for _ in range(nodes - 1):
        cluster.add_node(wait=False, **options)
    cluster.wait_for_nodes(timeout=60)
    print(json.dumps({"address": cluster.address}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
