"""A link between two network namespaces, relayed in user space because not every kernel has netem.

The link has two ends, which are tun devices: HERE in the namespace of the caller, THERE in a new one. The relay is this
file, run as a process in the new namespace; its process number leads there:

    link = slow_link.SlowLink()
    subprocess.Popen([*link.enter, PROGRAM, ...])

Each direction has a rate, a delay, and a buffer. When the buffer is full, the tun device queues and then drops packets,
as a router does. The caller needs the rights of root in its user namespace (unshare -rn).
"""

import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time

HERE, THERE = "10.7.0.1", "10.7.0.2"
BITS_A_SECOND, DELAY_SECONDS, BUFFER_BYTES, MTU = 1e9, 0.020, 8 << 20, 60000
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


class SlowLink:
    """Raises OSError if the system has no tun devices or does not permit them."""

    def __init__(self):
        self.relay = subprocess.Popen([sys.executable, os.path.abspath(__file__)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE)
        if self.relay.stdout.readline() != b"ready\n":
            self.close()
            raise OSError("no tun devices")
        self.enter = ["nsenter", "-t", str(self.relay.pid), "-n"]  # begins commands that run THERE

    def drop(self):
        """From now on the link loses every packet, and nobody is told."""
        self.relay.stdin.write(b"drop\n")
        self.relay.stdin.flush()

    def close(self):
        self.relay.stdin.close()
        self.relay.wait(timeout=60)
        self.relay.stdout.close()


class Direction:
    """Packets on their way from one device to the other, in order."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.packets = collections.deque()  # (when it arrives, packet)
        self.bytes = 0
        self.free_at = 0.0  # when the link has sent all of them

    def read(self, now):
        packet = os.read(self.source, 65536)
        self.free_at = max(now, self.free_at) + len(packet) * 8 / BITS_A_SECOND
        self.packets.append((self.free_at + DELAY_SECONDS, packet))
        self.bytes += len(packet)

    def deliver(self, now):
        while self.packets and self.packets[0][0] <= now:
            packet = self.packets.popleft()[1]
            self.bytes -= len(packet)
            os.write(self.target, packet)


def open_device(address):
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"slow", IFF_TUN | IFF_NO_PI))
    for words in (["addr", "add", address + "/24", "dev", "slow"], ["link", "set", "slow", "up", "mtu", str(MTU)],
                  ["link", "set", "lo", "up"]):
        subprocess.run(["ip", *words], check=True)
    return device


def relay(devices):
    """Until stdin ends."""
    ways = [Direction(*devices), Direction(*reversed(devices))]
    while True:
        now = time.monotonic()
        arrivals = [way.packets[0][0] for way in ways if way.packets]
        wait = max(0.0, min(arrivals) - now) if arrivals else None
        sources = {way.source: way for way in ways if way.bytes < BUFFER_BYTES}
        ready, _, _ = select.select([*sources, 0], [], [], wait)
        if 0 in ready:
            if not os.read(0, 16):
                return
            sys.stdin.read()  # the link is dropped: nothing is relayed until the end
            return
        now = time.monotonic()
        for source in ready:
            sources[source].read(now)
        for way in ways:
            way.deliver(now)


def main():
    here = open_device(HERE)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    there = open_device(THERE)
    print("ready", flush=True)
    relay([here, there])


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as why:
        sys.exit(f"slow_link: {why}")
