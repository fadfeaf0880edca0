"""Attempts to get out of the sandbox by way of the kernel."""

from tests.escapes.attempt import WITH_DAEMON, Attempt, Category, Place

_NO_PRIVILEGE = "no capabilities, `no_new_privs`, and a filter of system calls"
_NAMESPACES = "namespaces of its own, and a filter that lets it make no others"

ATTEMPTS = [
    Attempt(
        "mounts file systems",
        Category.ESCAPE,
        "attempt(lambda: call('mount', b'none', b'/tmp', b'tmpfs', 0, None))\n"
        "attempt(lambda: call('mount', None, b'/', None, 32 | 4096, None))\n"
        "attempt(lambda: call('mount', b'cgroup', b'/tmp', b'cgroup', 0, b'rdma'))\n",
        "EPERM",
        _NO_PRIVILEGE,
        plain=True,
    ),
    Attempt(
        "unmounts what hides the machine",
        Category.ESCAPE,
        "each(lambda path: call('umount2', path, 2), [b'/proc', b'/', b'/workspace', b'/dev'])",
        "EPERM",
        _NO_PRIVILEGE,
        plain=True,
    ),
    Attempt(
        "makes a user namespace, in which it would be root",
        Category.ESCAPE,
        "each(lambda what: call('unshare', what), [NEW_USER, NEW_USER | NEW_NS, NEW_USER | NEW_NET])\n"
        "def clone(*words):\n"
        "    if syscall(*words) == 0: os._exit(0)\n"
        "attempt(lambda: clone(56, 220, NEW_USER | signal.SIGCHLD, 0, 0, 0, 0))\n"
        "told = ctypes.create_string_buffer(struct.pack('QQQQQQQQ', NEW_USER, 0, 0, 0, 17, 0, 0, 0))\n"
        "attempt(lambda: clone(435, 435, ctypes.addressof(told), 64))\n",
        "EPERM|ENOSYS|ENOSPC",
        _NAMESPACES,
        plain=True,
    ),
    Attempt(
        "makes other namespaces",
        Category.ESCAPE,
        "each(lambda what: call('unshare', what), [NEW_NS, NEW_NET, NEW_PID, NEW_CGROUP])",
        "EPERM",
        _NAMESPACES,
        plain=True,
    ),
    Attempt(
        "enters the namespaces of process 1",
        Category.ESCAPE,
        "each(lambda name: call('setns', os.open(f'/proc/1/ns/{name}', os.O_RDONLY), 0),"
        " ['mnt', 'net', 'pid', 'user', 'ipc'])",
        "EPERM|EACCES",
        _NAMESPACES,
        plain=True,
    ),
    Attempt(
        "becomes root",
        Category.ESCAPE,
        "attempt(lambda: os.setuid(0))\nattempt(lambda: os.setresgid(0, 0, 0))\nattempt(lambda: os.setgroups([0]))\n"
        "attempt(lambda: os.chown('/workspace', 0, 0))\n",
        "EPERM",
        _NO_PRIVILEGE,
    ),
    Attempt(
        "runs a program of root's that is setuid",
        Category.ESCAPE,
        "def run():\n"
        "    names = ('su', 'mount', 'passwd', 'sudo', 'chsh')\n"
        "    there = [path for name in names if os.path.exists(path := f'/usr/bin/{name}')]\n"
        "    found = [path for path in there if os.stat(path).st_mode & 0o4000]\n"
        "    if not found: raise RefusedError('none there')\n"
        "    one = subprocess.Popen(found[:1], stdin=-1, stdout=-1, stderr=subprocess.STDOUT)\n"
        "    users = {line.split()[2] for line in open(f'/proc/{one.pid}/status') if line.startswith('Uid')}\n"
        "    one.kill(); one.communicate()\n"
        "    if '0' not in users: raise RefusedError('still itself')\n"
        "attempt(run)\n",
        "none there|still itself",
        "`no_new_privs`: a setuid bit says nothing",
        plain=True,
    ),
    Attempt(
        "leaves a setuid shell behind",
        Category.ESCAPE,
        "write('shell', open('/proc/self/comm').read()); os.chmod('shell', 0o4755)\nprint('refused: its own user')",
        "its own user",
        "the file belongs to the sandbox's user; copies outside lose the bit",
        recorded=r"SETUID /workspace/shell mode 4755",
    ),
    Attempt(
        "makes devices",
        Category.ESCAPE,
        "attempt(lambda: os.mknod('disk', 0o060600, os.makedev(8, 0)))\n"
        "attempt(lambda: os.mknod('memory', 0o020600, os.makedev(1, 1)))\n",
        "EPERM",
        _NO_PRIVILEGE,
        plain=True,
    ),
    Attempt(
        "opens the machine's devices",
        Category.ESCAPE,
        "each(lambda name: os.open('/dev/' + name, os.O_RDWR), ['sda', 'vda', 'nvme0n1', 'mem', 'kmsg', 'kvm', 'fuse',"
        " 'net/tun', 'vsock', 'vhost-vsock', 'loop-control'])",
        "ENOENT|EACCES|EPERM",
        "a `/dev` with `null`, `zero`, `random`, `tty` and nothing else",
    ),
    Attempt(
        "rewrites what the kernel runs or how it behaves",
        Category.ESCAPE,
        "each(write, ['/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sysrq-trigger',"
        " '/sys/kernel/uevent_helper', '/proc/sys/net/ipv4/ip_forward', '/proc/sys/vm/overcommit_memory'])",
        "EACCES|EPERM|EROFS|ENOENT",
        "`/proc/sys` is root's and read-only, `/sys` is read-only or not there",
        plain=True,
    ),
    Attempt(
        "leaves its control group",
        Category.ESCAPE,
        "found = [f'{folder}/{name}' for folder, _, names in os.walk('/sys/fs/cgroup') for name in names"
        " if name in ('cgroup.procs', 'release_agent', 'pids.max', 'memory.max')][:50]\n"
        "each(lambda path: write(path, '0'), found or ['/sys/fs/cgroup/cgroup.procs'])\n",
        "EACCES|EPERM|EROFS|ENOENT",
        "`/sys/fs/cgroup` is read-only or not there",
    ),
    Attempt(
        "traces process 1",
        Category.ESCAPE,
        "attempt(lambda: call('ptrace', 16, 1, 0, 0))\nattempt(lambda: call('ptrace', 0x4206, 1, 0, 0))\n"
        "room = ctypes.create_string_buffer(64)\n"
        "where = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(room), 64))\n"
        "far = ctypes.create_string_buffer(struct.pack('QQ', 0x400000, 64))\n"
        "attempt(lambda: call('process_vm_readv', 1, where, 1, far, 1, 0))\n"
        "attempt(lambda: syscall(438, 438, os.pidfd_open(1), 0, 0))\n",
        "EPERM|EACCES",
        "the first process is undumpable or another user's; in the local provider a filter besides",
        plain=True,
    ),
    Attempt(
        "loads code into the kernel",
        Category.ESCAPE,
        "each(lambda numbers: syscall(*numbers, 0, 0, 0, 0, 0), [(175, 105), (313, 273), (321, 280), (298, 241),"
        " (246, 104), (425, 425)])",
        "EPERM|ENOSYS",
        "a filter of system calls: modules, bpf, perf events, kexec, io_uring",
        plain=True,
    ),
    Attempt(
        "opens files by their number",
        Category.ESCAPE,
        "handle = ctypes.create_string_buffer(struct.pack('IIQ', 8, 1, 2))\n"
        "attempt(lambda: call('open_by_handle_at', os.open('/', os.O_RDONLY), handle, 0))\n",
        "EPERM",
        _NO_PRIVILEGE,
        places=frozenset({Place.LOCAL, *WITH_DAEMON}),
    ),
    Attempt(
        "changes its root",
        Category.ESCAPE,
        "attempt(lambda: os.chroot('/tmp'))",
        "EPERM",
        _NO_PRIVILEGE,
        plain=True,
    ),
    Attempt(
        "sets the clock",
        Category.ESCAPE,
        "attempt(lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))\n"
        "now = ctypes.create_string_buffer(struct.pack('qq', int(time.time()), 0))\n"
        "attempt(lambda: call('settimeofday', now, None))\n",
        "EPERM",
        _NO_PRIVILEGE,
        plain=True,
    ),
    Attempt(
        "renames or restarts the machine",
        Category.ESCAPE,
        "attempt(lambda: call('sethostname', b'mine', 4))\nattempt(lambda: call('reboot', 0))\n",
        "EPERM",
        _NO_PRIVILEGE,
        plain=True,
    ),
    Attempt(
        "raises its own limits",
        Category.ESCAPE,
        "def lift(kind):\n"
        "    try: resource.setrlimit(kind, (1 << 30, 1 << 30))\n"
        "    except ValueError: raise RefusedError('hard limit')\n"
        "each(lift, [resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE])\n",
        "hard limit|EPERM",
        "limits are hard ones",
    ),
    Attempt(
        "takes the processor for itself",
        Category.ESCAPE,
        "attempt(lambda: os.nice(-10))\nattempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))\n"
        "attempt(lambda: syscall(251, 30, 1, 0, 1 << 13))\n",
        "EPERM|EACCES",
        _NO_PRIVILEGE,
        plain=True,
    ),
    Attempt(
        "reads the kernel's log",
        Category.ESCAPE,
        "attempt(lambda: call('klogctl', 3, ctypes.create_string_buffer(64), 64))",
        "EPERM",
        _NO_PRIVILEGE,
        plain=True,
    ),
    Attempt(
        "leaves a key in the kernel for whoever has its user",
        Category.ESCAPE,
        "attempt(lambda: syscall(248, 217, ctypes.addressof(ctypes.create_string_buffer(b'user')),"
        " ctypes.addressof(ctypes.create_string_buffer(b'seatrial')), 0, 0, -4))\n"
        "attempt(lambda: syscall(250, 219, 0, -4, 1))\n",
        "EPERM|ENOSYS",
        "a filter of system calls: keyrings belong to users, not to sandboxes",
        plain=True,
    ),
    Attempt(
        "talks to the hypervisor",
        Category.ESCAPE,
        "attempt(lambda: connect(40, (2, 1024)))\nattempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET))\n",
        "EPERM|EAFNOSUPPORT|ENODEV",
        "a filter of system calls: such sockets know no network namespaces",
        plain=True,
    ),
    Attempt(
        "rewrites what it shares with the machine or its image",
        Category.ESCAPE,
        "each(lambda path: write(path), ['/etc/ld.so.preload', '/etc/environment', '/usr/bin/x', '/usr/lib/x.so',"
        " os.path.dirname(os.__file__) + '/sitecustomize.py', os.path.dirname(os.__file__) + '/__pycache__/os.x.pyc',"
        " sys.prefix + '/bin/x', '/etc/profile.d/x.sh', '/etc/passwd', '/var/spool/cron/crontabs/agent'])",
        "EROFS|EACCES|ENOENT",
        "system and interpreter are read-only or root's",
    ),
]
