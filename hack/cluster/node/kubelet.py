"""The kubelet: unmodified, told to leave the machine as it is."""

import json
from typing import Any

from hack.cluster.layout import BIN, DNS_ADDRESS, INSIDE, NODE_ADDRESS, NODE_NAME, POD_RANGE
from hack.cluster.node.runtime import SOCKET, SYSTEM_PATH
from hack.cluster.processes import Command


def kubelet(cgroup: str) -> Command:
    """The kubelet with all its pods below one cgroup; writes what it reads."""
    config = INSIDE / "kubelet.json"
    config.write_text(json.dumps(_config(cgroup), indent=1))
    (INSIDE / "pods-resolv.conf").touch()
    words = (
        str(BIN / "kubelet"),
        f"--config={config}",
        f"--kubeconfig={INSIDE}/pki/kubelet.kubeconfig",
        f"--root-dir={INSIDE}/kubelet",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_ADDRESS}",
    )
    return Command("kubelet", words, env={"PATH": SYSTEM_PATH})


def _config(cgroup: str) -> dict[str, Any]:
    pki = INSIDE / "pki"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet-server.key",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "podCIDR": POD_RANGE,
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{INSIDE}/pods-resolv.conf",
        "podLogsDir": f"{INSIDE}/pods-logs",
        "volumePluginDir": f"{INSIDE}/volume-plugins",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxOpenFiles": 20_000,
        "maxPods": 200,
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 0,
        # Images come from archives and could not be pulled again; a full disk is the machine's affair.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "shutdownGracePeriod": "0s",
    }
