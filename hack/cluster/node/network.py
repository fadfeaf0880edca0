"""Services, names and network policies of the node."""

import json
from pathlib import Path
from typing import Any

from hack.cluster.layout import BIN, DNS_ADDRESS, INSIDE, NODE, NODE_ADDRESS, NODE_NAME, POD_RANGE
from hack.cluster.node.runtime import SYSTEM_PATH
from hack.cluster.processes import Command

_QUEUE = 100
"""Number of the netfilter queue in which the policies' agent decides."""


def kube_proxy() -> Command:
    """Services' addresses, by nftables."""
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": NODE_NAME,
        "clusterCIDR": POD_RANGE,
        "clientConnection": {"kubeconfig": f"{INSIDE}/pki/kube-proxy.kubeconfig"},
        # These belong to the machine.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "nftables": {"minSyncPeriod": "100ms"},
    }
    path = INSIDE / "kube-proxy.json"
    path.write_text(json.dumps(config))
    return Command("kube-proxy", (str(BIN / "kube-proxy"), f"--config={path}"), env={"PATH": SYSTEM_PATH})


def coredns() -> Command:
    """Cluster names, and no others: nothing leads out of the node."""
    path = INSIDE / "Corefile"
    path.write_text(f"""\
.:53 {{
  bind {NODE_ADDRESS}
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    kubeconfig {INSIDE}/pki/admin.kubeconfig seatrial
    pods insecure
    ttl 5
  }}
  cache 5
}}
""")
    return Command("coredns", (str(BIN / "coredns"), "-conf", str(path)))


def dns_service() -> list[dict[str, Any]]:
    """The usual Service of the usual name, for CoreDNS as a process of the node."""
    name = {"name": "kube-dns", "namespace": "kube-system"}
    labels = {"kubernetes.io/service-name": "kube-dns"}
    ports = [{"name": protocol.lower(), "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": name,
        "spec": {"clusterIP": DNS_ADDRESS, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": name | {"labels": labels},
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [{"addresses": [NODE_ADDRESS], "conditions": {"ready": True}, "nodeName": NODE_NAME}],
    }
    return [service, endpoints]


POLICY_ACCOUNT = ("network-policies", "--namespace=kube-system")


def policy_account() -> list[dict[str, Any]]:
    """Who the policies' agent is, and what it may read."""
    name = {"name": "network-policies"}
    rbac = "rbac.authorization.k8s.io"
    reads = ["get", "list", "watch"]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name | {"namespace": "kube-system"}},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": name,
            "rules": [
                {"apiGroups": [""], "resources": ["pods", "namespaces", "nodes"], "verbs": reads},
                {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": reads},
            ],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": name,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", **name},
            "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", **name}],
        },
    ]


def stand_in_for_pod(token: str) -> None:
    """Let the agent, which only knows life in a pod, find its account where pods find theirs."""
    account = Path("/run/secrets/kubernetes.io/serviceaccount")
    account.mkdir(parents=True)
    (account / "token").write_text(token.strip())
    (account / "ca.crt").write_bytes((INSIDE / "pki/ca.crt").read_bytes())


def network_policies() -> Command:
    """The agent that applies network policies."""
    words = (
        str(BIN / "kube-network-policies"),
        f"--hostname-override={NODE_NAME}",
        f"--nfqueue-id={_QUEUE}",
        "--disable-nri",
        "--netfilter-bug-1766-fix=false",
        "--metrics-bind-address=127.0.0.1:9080",
    )
    env = {"PATH": SYSTEM_PATH, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(NODE.port)}
    return Command("network-policies", words, env=env)


def diversion() -> str:
    """Rules, for `iptables-nft-restore`, by which new connections of pods wait for the agent's word.

    The agent's own rules need an nftables expression that some kernels lack; the older target works in all. What the
    node's own daemons send (probes) passes; what pods send to the node (API server, DNS) is asked about too.
    """
    known = "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    ask = f"-j NFQUEUE --queue-num {_QUEUE}"
    return f"""\
*mangle
:POLICY-OUT -
:POLICY-IN -
-A POLICY-OUT -o lo -j RETURN
-A POLICY-OUT -m owner --uid-owner 0 -j RETURN
-A POLICY-OUT {known}
-A POLICY-OUT {ask}
-A POLICY-IN {known}
-A POLICY-IN {ask}
-A POSTROUTING -j POLICY-OUT
-A INPUT -s {POD_RANGE} -j POLICY-IN
COMMIT
"""
