"""Command lines of etcd, the API server and the controllers of Kubernetes."""

from pathlib import Path

from hack.cluster.layout import BIN, Addresses, Layout
from hack.cluster.processes import Command

API_SERVER = "api-server"


def etcd(layout: Layout) -> Command:
    """Etcd on Unix sockets; what it stores need not survive the machine's end."""
    client, peer = (f"unix://{layout.folder / name}" for name in ("etcd.sock", "etcd-peer.sock"))
    words = (
        str(BIN / "etcd"),
        f"--data-dir={layout.folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
        f"--quota-backend-bytes={4 << 30}",
    )
    return Command("etcd", words)


def api_server(layout: Layout, addresses: Addresses) -> Command:
    """The API server, with the admission plugins and authorizers that clusters have."""
    pki = layout.pki
    words = (
        str(BIN / "kube-apiserver"),
        f"--etcd-servers=unix://{layout.folder / 'etcd.sock'}",
        f"--bind-address={addresses.bind}",
        f"--secure-port={addresses.port}",
        "--permit-port-sharing",  # whoever started us holds the port, so that nobody else takes it
        f"--advertise-address={addresses.advertised}",
        f"--service-cluster-ip-range={addresses.services}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        f"--client-ca-file={pki / 'ca.crt'}",
        *_serving(pki, "api-server"),
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--profiling=false",
    )
    return Command(API_SERVER, words, is_revived=True)


def controller_manager(layout: Layout, addresses: Addresses) -> Command:
    """All controllers of Kubernetes, unthrottled, serving nothing."""
    pki = layout.pki
    words = (
        str(BIN / "kube-controller-manager"),
        f"--kubeconfig={pki / 'controller-manager.kubeconfig'}",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        "--allocate-node-cidrs=false",
        f"--service-cluster-ip-range={addresses.services}",
        "--secure-port=0",
        *_UNTHROTTLED,
        "--concurrent-gc-syncs=20",
    )
    return Command("controller-manager", words)


def scheduler(layout: Layout) -> Command:
    """The default scheduler, unthrottled, serving nothing."""
    words = (
        str(BIN / "kube-scheduler"),
        f"--kubeconfig={layout.pki / 'scheduler.kubeconfig'}",
        "--leader-elect=false",
        "--secure-port=0",
        *_UNTHROTTLED,
    )
    return Command("scheduler", words)


_UNTHROTTLED = ("--kube-api-qps=500", "--kube-api-burst=1000")


def _serving(pki: Path, name: str) -> tuple[str, str]:
    return f"--tls-cert-file={pki / name}.crt", f"--tls-private-key-file={pki / name}.key"
