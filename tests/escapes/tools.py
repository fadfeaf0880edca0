"""Attempts against the tool servers, and against the hands that carry files in and out."""

from tests.escapes.attempt import WITH_DAEMON, Attempt, Category, Place
from tests.escapes.outside import (
    fetch_named_oddly,
    fetch_through_link,
    fetch_while_swapped,
    genuine_answer,
    long_answer,
    lying_archive,
    put_where_swapped,
    quick_answer,
    still_there,
)

ATTEMPTS = [
    Attempt(
        "kills everything, process 1 first",
        Category.TOOLS,
        "for number in range(1, 65):\n"
        "    with contextlib.suppress(OSError): os.kill(1, number)\n"
        "with contextlib.suppress(OSError): os.kill(-1, signal.SIGKILL)\n",
        "still there",
        "from inside nobody can kill the first process; the local keeper is outside",
        act=still_there,
    ),
    Attempt(
        "kills the tool servers and answers in their place",
        Category.TOOLS,
        "import re\n"
        "code = '''\n"
        "import socket, os, signal, re, time\n"
        "end, held = time.monotonic() + 8, []\n"
        "while time.monotonic() < end:\n"
        "    for name in set(re.findall('@(seatrial-[^ \\\\n]*)', open('/proc/net/unix').read())) - set(held):\n"
        "        for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "            try:\n"
        "                if b'daemon.tools' in open(f'/proc/{pid}/cmdline', 'rb').read(): os.kill(int(pid), 9)\n"
        "            except OSError: pass\n"
        "        one = socket.socket(socket.AF_UNIX)\n"
        "        for _ in range(10000):\n"
        "            try: one.bind('\\\\0' + name); one.listen(); held.append(name); break\n"
        "            except OSError: pass\n"
        "'''\n"
        "background(code)",
        "genuine",
        "addresses that change with every start, and the caller looks who listens",
        act=genuine_answer,
        places=WITH_DAEMON,
    ),
    Attempt(
        "answers a tool call without end",
        Category.TOOLS,
        "write('flood.sh', r'head -c 30000000 /dev/zero | tr \\0 x')",
        "cut",
        "tools and commands have budgets of bytes",
        act=long_answer,
    ),
    Attempt(
        "keeps a tool call open from the background",
        Category.TOOLS,
        "write('hold.sh', 'sleep 60 & echo done')",
        "answered",
        "a call ends with its command, whoever holds its output",
        act=quick_answer,
    ),
    Attempt(
        "puts a link to the machine's files where its report is fetched",
        Category.TOOLS,
        "os.makedirs('report/sub', exist_ok=True)\n"
        "for n, path in enumerate([*facts['files'], '/etc/passwd', '/proc/self/environ', '/proc/1/root']):\n"
        "    os.symlink(path, f'report/sub/{n}')\n"
        "os.symlink('/etc', 'report/etc'); os.mkfifo('report/pipe')\n",
        "left behind",
        "files are opened step by step, no step may be a link, and only plain files are read",
        act=fetch_through_link,
        recorded="OUTWARD_LINK /workspace/report/etc leads to '/etc'",
        plain=True,
    ),
    Attempt(
        "swaps its report for a link while it is fetched",
        Category.TOOLS,
        "os.makedirs('swap', exist_ok=True)\n"
        "background('''\n"
        "import os, time\n"
        "end = time.monotonic() + 8\n"
        "os.symlink(%r, '/workspace/swap/link')\n"
        "while time.monotonic() < end:\n"
        "    open('/workspace/swap/plain', 'w').write('mine')\n"
        "    os.rename('/workspace/swap/plain', '/workspace/swap/report')\n"
        "    os.link('/workspace/swap/link', '/workspace/swap/other', follow_symlinks=False)\n"
        "    os.rename('/workspace/swap/other', '/workspace/swap/report')\n"
        "''' % facts['files'][0])",
        "its own",
        "a descriptor is opened once, without following links, and read",
        act=fetch_while_swapped,
    ),
    Attempt(
        "swaps a folder for a link while files arrive in it",
        Category.TOOLS,
        "os.makedirs('/tmp/elsewhere', exist_ok=True)\n"
        "background('''\n"
        "import os, shutil, time\n"
        "end = time.monotonic() + 8\n"
        "while time.monotonic() < end:\n"
        "    for target in %r:\n"
        "        try:\n"
        "            shutil.rmtree('/workspace/up/d', True); os.symlink(target, '/workspace/up/d')\n"
        "            os.unlink('/workspace/up/d'); os.makedirs('/workspace/up/d', exist_ok=True)\n"
        "        except OSError: pass\n"
        "''' % ([*facts['folders'], '/tmp/elsewhere'],))",
        "nothing elsewhere",
        "folders are entered by descriptor, step by step, and no step may be a link",
        act=put_where_swapped,
    ),
    Attempt(
        "makes hard links to files that it may not change",
        Category.TOOLS,
        "each(lambda path: os.link(path, 'hard' + path.replace('/', '-')), ['/etc/passwd', '/usr/bin/env', '/bin/bash',"
        " os.__file__])",
        "EXDEV|EPERM|EROFS|EACCES|ELOOP",
        "what it may write lies on mounts of its own",
    ),
    Attempt(
        "gives files names that are more than names",
        Category.TOOLS,
        "for name in (b'..\\\\..\\\\evil', b'new\\nline', b'\\xff\\xfe', b'-rf', b'$(id)', b'a' * 255, b'.. '):\n"
        "    os.makedirs(b'odd/' + name, exist_ok=True); open(b'odd/' + name + b'/f', 'w').close()\n",
        "kept below",
        "names are never parts of a command, and never paths",
        act=fetch_named_oddly,
    ),
    Attempt(
        "sends an archive that unpacks to more than there is room for",
        Category.TOOLS,
        "",
        "SandboxLimitError|SandboxDataError",
        "sizes, names and hashes of an archive are checked before its first file is written",
        act=lying_archive,
        places=frozenset({Place.DAEMON, Place.POD}),
    ),
]
