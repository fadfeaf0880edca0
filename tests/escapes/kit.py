"""Before every attempt: says what became of it. It is sent into the sandbox as text, so it imports nothing of ours."""
# ruff: noqa: ANN001, ANN002, ANN201, PTH112, PTH123, PTH208, T201, S606  short text for whatever Python is there

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
with open(globals().get("facts_file", os.devnull)) as told:
    facts = json.loads(told.read() or "{}")
is_arm = platform.machine() == "aarch64"
NEW_NS, NEW_CGROUP, NEW_USER, NEW_PID, NEW_NET = 0x20000, 0x2000000, 0x10000000, 0x20000000, 0x40000000
rest = (contextlib, resource, signal, struct, sys, time)  # what attempts use besides


class RefusedError(Exception):
    """What was tried led to nothing, without an error of the system's."""


def call(name, *arguments):
    """A function of the C library; its error is raised."""
    result = getattr(libc, name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def syscall(on_x86, on_arm, *arguments):
    """A system call by number; its error is raised."""
    return call("syscall", ctypes.c_long(on_arm if is_arm else on_x86), *map(ctypes.c_long, arguments))


def sh(script):
    """What a shell says."""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout + done.stderr


def write(path, text="x"):
    """Write a file."""
    with open(path, "w") as file:
        file.write(text)


def read(path):
    """Read the beginning of a file, or the names in a folder."""
    if os.path.isdir(path):
        return os.listdir(path)
    with open(path, "rb") as file:
        return file.read(100)


def connect(family, address, kind=socket.SOCK_STREAM):
    """Reach somebody within two seconds."""
    with socket.socket(family, kind) as one:
        one.settimeout(2)
        one.connect(address)
        if kind == socket.SOCK_STREAM:
            return "connected"
        one.send(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01")
        return one.recv(100)


def tcp(address):
    """Reach `host:port` within two seconds."""
    host, _, port = address.rpartition(":")
    return connect(socket.AF_INET6 if ":" in host else socket.AF_INET, (host.strip("[]"), int(port)))


def background(code):
    """Run Python in a session without parent, name or environment, with nothing of ours but its user."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open("/dev/null", os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            disguised = "open('/proc/self/comm', 'w').write('kworker/0:1')\n" + code
            os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", disguised], {})
        os._exit(0)
    os.wait()


def attempt(act, name=""):
    """Do one thing and say what became of it."""
    try:
        what = act()
    except RefusedError as exc:
        print(f"refused: {exc}", flush=True)
    except TimeoutError:
        print("refused: ETIMEDOUT", flush=True)
    except MemoryError:
        print("refused: MemoryError", flush=True)
    except OSError as exc:
        print(f"refused: {errno.errorcode.get(exc.errno, exc)}", flush=True)
    else:
        print(f"got through: {name or what}", flush=True)


def each(act, over):
    """Try one thing with all of these at once."""
    threads = [threading.Thread(target=attempt, args=(lambda one=one: act(one), str(one))) for one in over]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
