"""The order in which a node comes up."""

import json
from http import HTTPStatus

from hack.cluster.api_server import is_ready
from hack.cluster.images.samples import pause_image
from hack.cluster.layout import NODE_NAME
from hack.cluster.node import network, registry, runtime
from hack.cluster.node.kubelet import kubelet
from hack.cluster.processes import until
from hack.cluster.startup import Startup


async def start_runtime(startup: Startup) -> None:
    """Containerd and the one image that every pod needs; wants nothing of the control plane."""
    await startup.start(runtime.containerd())
    await until(runtime.is_up, what="containerd to listen", deadline=startup.deadline)
    await startup.processes.run(*runtime.importing(pause_image()))
    if registry.is_installed():
        await startup.start(registry.registry())


async def start_node(startup: Startup) -> None:
    """Kubelet, Services, names and policies, until the node is ready for pods."""
    await startup.start(kubelet(startup.name), network.kube_proxy(), network.coredns())
    manifests = [*network.dns_service(), *network.policy_account()]
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    await startup.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(listed))
    token = await startup.kubectl("create", "token", *network.POLICY_ACCOUNT, "--duration=8760h")
    network.stand_in_for_pod(token)
    await startup.start(network.network_policies())
    await startup.processes.run("iptables-nft-restore", "--noflush", stdin=network.diversion())
    what = f"{NODE_NAME} to be ready"
    await until(lambda: _is_ready(startup), what=what, deadline=startup.deadline)


def _is_ready(startup: Startup) -> bool:
    status, node = startup.api.request("GET", f"/api/v1/nodes/{NODE_NAME}")
    return status == HTTPStatus.OK and is_ready(node)
