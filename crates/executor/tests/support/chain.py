"""A process that goes on in a new one every few milliseconds, each in a session of its own and with no
parent: it forks, ends, and its child does the same. It says so in the pipe that it is given, which
stays open as long as one of them lives. It ends by itself after a minute."""

import os
import sys
import time

until = time.monotonic() + 60
said = os.open(sys.argv[1], os.O_WRONLY)
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
    os.write(said, b".")
    time.sleep(0.003)
