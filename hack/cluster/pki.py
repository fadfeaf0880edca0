"""Certificates of one copy: a new authority each time, elliptic keys, valid for a year."""

import base64
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hack.cluster.layout import NODE_ADDRESS, NODE_NAME, Addresses

_LIFETIME = timedelta(days=365)
_CLOCKS_DIFFER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a certificate speaks for."""

    name: str
    """Of its files."""
    user: str
    group: str | None = None


ADMIN = Identity("admin", "admin", "system:masters")
CONTROLLER_MANAGER = Identity("controller-manager", "system:kube-controller-manager")
SCHEDULER = Identity("scheduler", "system:kube-scheduler")
KUBE_PROXY = Identity("kube-proxy", "system:kube-proxy")
KUBELET = Identity("kubelet", f"system:node:{NODE_NAME}", "system:nodes")
"""Confined to its own node by the node authorizer."""
KUBERAY = Identity("kuberay", "system:serviceaccount:kuberay-system:kuberay-operator", "system:serviceaccounts")
"""Who KubeRay's operator is where its chart installs it, with the rights that its own role gives it."""


class Authority:
    """Signs what the parts of one copy show each other, and writes it into one folder.

    Files: `ca.crt`, `ca.key`; `<name>.crt` and `<name>.key` of each name; `sa.key` and `sa.pub`, which sign the tokens
    of service accounts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = self._new_key("ca")
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "seatrial-test-cluster")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        self._sign("ca", builder)
        public = self._new_key("sa").public_key()
        (folder / "sa.pub").write_bytes(
            public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )

    def issue_client(self, identity: Identity) -> None:
        """A certificate by which a client says who it is."""
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, identity.user)]
        if identity.group is not None:
            parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.group))
        self._issue(identity.name, x509.Name(parts), ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def issue_server(self, name: str, hosts: Sequence[str]) -> None:
        """A certificate for a server under the given host names and addresses."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._issue(name, subject, ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def _issue(self, name: str, subject: x509.Name, usage: x509.ObjectIdentifier, hosts: Sequence[str]) -> None:
        builder = self._builder(subject, self._new_key(name))
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        self._sign(name, builder)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)  # noqa: TID251  certificates live by the wall clock
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCKS_DIFFER)
            .not_valid_after(now + _LIFETIME)
        )

    def _sign(self, name: str, builder: x509.CertificateBuilder) -> None:
        certificate = builder.sign(self._key, hashes.SHA256())
        (self._folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _new_key(self, name: str) -> ec.EllipticCurvePrivateKey:
        key = ec.generate_private_key(ec.SECP256R1())
        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        path = self._folder / f"{name}.key"
        path.touch(mode=0o600)
        path.write_bytes(encoded)
        return key


def write_all(folder: Path, addresses: Addresses) -> None:
    """Everything that the parts of a copy need to know each other."""
    authority = Authority(folder)
    service = "kubernetes.default.svc.cluster.local"
    names = [service.rsplit(".", dots)[0] for dots in range(5)]
    authority.issue_server(
        "api-server", [*names, "localhost", "127.0.0.1", addresses.advertised, addresses.kubernetes_service]
    )
    authority.issue_server("kubelet-server", [NODE_NAME, NODE_ADDRESS])
    for identity in (ADMIN, CONTROLLER_MANAGER, SCHEDULER, KUBELET, KUBE_PROXY, KUBERAY):
        authority.issue_client(identity)
        write_kubeconfig(folder / f"{identity.name}.kubeconfig", server=addresses.url, pki=folder, identity=identity)


def write_kubeconfig(path: Path, *, server: str, pki: Path, identity: Identity) -> None:
    """A kubeconfig that holds its certificates itself, so that it can be copied anywhere."""
    encoded = {
        file.name: base64.b64encode(file.read_bytes()).decode()
        for file in (pki / "ca.crt", pki / f"{identity.name}.crt", pki / f"{identity.name}.key")
    }
    name = "seatrial"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": encoded["ca.crt"]}}],
        "users": [
            {
                "name": identity.user,
                "user": {
                    "client-certificate-data": encoded[f"{identity.name}.crt"],
                    "client-key-data": encoded[f"{identity.name}.key"],
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": identity.user}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))  # JSON is YAML


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
