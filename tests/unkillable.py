"""A program that SIGKILL does not make vanish, as one is that hangs inside a GPU's driver.

Another process traces it, and a process that is traced stays until its tracer has seen its end.
"""

import subprocess
import sys

import pytest

SECONDS = 20.0  # until it vanishes, so that nothing of a test is left

PROGRAM = f"""
import ctypes, os, time
PR_SET_PTRACER, PTRACE_SEIZE = 0x59616D61, 0x4206
libc, traced = ctypes.CDLL(None), os.getpid()
libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1))
reads, writes = os.pipe()
if not os.fork():
    os.setsid()
    assert not libc.ptrace(PTRACE_SEIZE, traced, None, None)
    os.write(writes, b"x")
    for number in range(3):
        os.close(number)
    time.sleep({SECONDS})
    os._exit(0)
os.read(reads, 1)
print("traced", flush=True)
time.sleep(600)
"""

PROBE = """
import ctypes, os, sys, time
child = os.fork()
if not child:
    time.sleep(5)
    os._exit(0)
refused = ctypes.CDLL(None).ptrace(0x4206, child, None, None)
os.kill(child, 9)
sys.exit(1 if refused else 0)
"""
needs_tracing = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", PROBE], check=False).returncode != 0,
    reason="no process may trace another here",
)
