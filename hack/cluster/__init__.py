"""A real Kubernetes on this machine, for people and for tests: `make cluster`, or `Cluster.start(Grade.NODE)`.

Three grades, each with all of the one before it:

    control-plane   etcd and the API server
    controllers     controller-manager, scheduler, KubeRay's operator, KWOK for nodes that only pretend
    node            kubelet, containerd, kube-proxy, DNS, network policies; needs root

Who holds what:

    owner ── Cluster (handle.py)      a test session, or nobody after `make cluster`
      └─ keeper (keeper.py)           watches the owner; when either ends, leaves no trace of the copy
           └─ [namespaces]            node only: network, mounts and processes of its own
                └─ runner (runner.py) starts the processes in order; one that ends by itself ends all

Every copy has its own folder and its own port on the loopback; nothing else is shared, so copies run beside each other.
"""

from hack.cluster.errors import ClusterError, MissingPartsError
from hack.cluster.handle import Cluster
from hack.cluster.layout import Grade

__all__ = ["Cluster", "ClusterError", "Grade", "MissingPartsError"]
