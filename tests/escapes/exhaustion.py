"""Attempts to use up what others need. Each is bounded by itself: in number, in size, and by an alarm."""

from tests.escapes.attempt import Attempt, Category, Place
from tests.escapes.outside import deep_folders, others_are_served

_BOUND = "signal.alarm(20)\n"

ATTEMPTS = [
    Attempt(
        "starts processes without end",
        Category.EXHAUSTION,
        _BOUND + "def bomb():\n"
        "    for _ in range(400):\n"
        "        if os.fork() == 0:\n"
        "            signal.alarm(20); signal.pause()\n"
        "attempt(bomb)\n",
        "EAGAIN",
        "a number of processes of its own",
    ),
    Attempt(
        "starts threads without end",
        Category.EXHAUSTION,
        _BOUND + "def bomb():\n"
        "    threading.stack_size(65536)\n"
        "    for _ in range(400):\n"
        "        try: threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n"
        "        except RuntimeError: raise RefusedError('no more threads')\n"
        "attempt(bomb); sys.stdout.flush(); os._exit(0)\n",
        "no more threads",
        "threads count as processes",
    ),
    Attempt(
        "takes more memory than it has",
        Category.EXHAUSTION,
        _BOUND + "attempt(lambda: len(bytearray((facts['memory_mb'] + 64) << 20)))",
        "MemoryError",
        "private memory of a process is limited",
    ),
    Attempt(
        "takes more memory than it has by many processes",
        Category.EXHAUSTION,
        _BOUND + "def hold():\n"
        "    block = bytearray((facts['memory_mb'] // 2) << 20); time.sleep(15); os._exit(len(block) & 1)\n"
        "def take():\n"
        "    children = [child for _ in range(3) if (child := os.fork()) or hold()]\n"
        "    first, status = os.wait()\n"
        "    for child in children:\n"
        "        if child != first: os.kill(child, signal.SIGTERM)\n"
        "    if status == signal.SIGKILL: raise RefusedError('one was ended')\n"
        "attempt(take)\n",
        "one was ended",
        "in the local provider somebody looks every second; a pod has a limit",
        places=frozenset({Place.LOCAL}),
    ),
    Attempt(
        "writes a file without end",
        Category.EXHAUSTION,
        _BOUND + "def fill():\n"
        "    with open('/tmp/large', 'wb', 0) as file:\n"
        "        file.seek((facts['file_mb'] - 1) << 20)\n"
        "        for _ in range(3): file.write(bytes(1 << 20))\n"
        "attempt(fill); attempt(lambda: os.truncate('/tmp/large', 1 << 40)); os.unlink('/tmp/large')\n",
        "EFBIG",
        "the size of a file is limited, holes included",
    ),
    Attempt(
        "opens files without end",
        Category.EXHAUSTION,
        "attempt(lambda: len([os.open('/dev/null', os.O_RDONLY) for _ in range(2000)]))",
        "EMFILE",
        "open files of a process are limited",
    ),
    Attempt(
        "fills shared memory",
        Category.EXHAUSTION,
        _BOUND + "def fill():\n"
        "    with open('/dev/shm/fill', 'wb', 0) as file, open('/dev/shm/more', 'wb', 0) as other:\n"
        "        for _ in range(60):\n"
        "            written = file.write(bytes(1 << 20)) + other.write(bytes(1 << 20))\n"
        "            if written < 2 << 20: raise RefusedError('ENOSPC')\n"
        "attempt(fill)\n"
        "for name in ('fill', 'more'):\n"
        "    with contextlib.suppress(OSError): os.unlink('/dev/shm/' + name)\n",
        "ENOSPC|EACCES|EROFS",
        "`/dev/shm` holds 64 MiB",
    ),
    Attempt(
        "nests folders deeper than paths may be long",
        Category.EXHAUSTION,
        "os.makedirs('/tmp/deep', exist_ok=True); os.chdir('/tmp/deep')\n"
        "for _ in range(600):\n"
        "    os.mkdir('d' * 20); os.chdir('d' * 20)\n",
        "SandboxPathError|left behind",
        "depth is limited wherever a tree is walked",
        act=deep_folders,
    ),
    Attempt(
        "computes without end on every processor",
        Category.EXHAUSTION,
        "for _ in range(4):\n"
        "    with contextlib.suppress(BlockingIOError):  # the dead of other attempts still count for a moment\n"
        "        if os.fork() == 0:\n"
        "            signal.alarm(3)\n"
        "            while True: pass\n",
        "others are served",
        "the kernel shares processors fairly; pods have a limit besides",
        act=others_are_served,
    ),
]
