#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A long wire: forwards TCP connections, each byte after a delay.

    python bench_delay.py HOST:PORT ROUND_TRIP_MS

Prints its port; then, for each line on stdin, what passed since the previous
one: requests, bytes to the server, bytes from it. Ends with stdin.

For kernels without `tc netem`. A connection's first bytes wait for one more
round trip, as its handshake would. Data in flight on one connection is bounded
by 4 MiB, about what TCP's windows grow to. One thread, few copies.
"""

import collections
import heapq
import select
import socket
import sys
import time

CHUNK = 256 << 10
WINDOW = 4 << 20


class Side:
    """What one end has sent, until the other end has it."""

    def __init__(self, source, target, first, asks):
        self.source, self.target, self.asks = source, target, asks
        self.first = first  # nothing arrives before this
        self.queue = collections.deque()  # (due, memoryview)
        self.held = 0
        self.ended = self.closed = False


class Wire:
    def __init__(self, target, delay):
        self.address, self.delay = target, delay
        self.poll = select.epoll()
        self.sides = {}  # by descriptor: (what it sends, what it is sent)
        self.masks = {}
        self.due = []  # (when, descriptor that bytes go to)
        self.pool = []
        self.server = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.poll.register(self.server, select.EPOLLIN)
        self.poll.register(sys.stdin, select.EPOLLIN)
        self.requests = 0
        self.passed = {True: 0, False: 0}  # to the server; from it

    def tell(self):
        """False when nobody asks anymore."""
        if not sys.stdin.readline():
            return False
        print(self.requests, self.passed[True], self.passed[False], flush=True)
        self.requests, self.passed = 0, {True: 0, False: 0}
        return True

    def accept(self):
        near, _ = self.server.accept()
        far = socket.create_connection(self.address)
        now = time.monotonic()
        for one in (near, far):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there = Side(near, far, now + 3 * self.delay, True)
        back = Side(far, near, now, False)
        self.sides[near.fileno()] = (there, back)
        self.sides[far.fileno()] = (back, there)
        for one in (near, far):
            self.poll.register(one, 0)
            self.masks[one.fileno()] = 0
            self.want(one.fileno())

    def want(self, number):
        """Reads while there is room; writes when something is due."""
        sends, is_sent = self.sides[number]
        mask = 0
        if not sends.ended and sends.held < WINDOW:
            mask |= select.EPOLLIN
        if is_sent.queue and is_sent.queue[0][0] <= time.monotonic():
            mask |= select.EPOLLOUT
        if mask != self.masks[number]:
            self.masks[number] = mask
            self.poll.modify(number, mask)

    def read(self, side):
        buffer = self.pool.pop() if self.pool else bytearray(CHUNK)
        try:
            count = side.source.recv_into(buffer)
        except BlockingIOError:
            self.pool.append(buffer)
            return
        due = max(time.monotonic() + self.delay, side.first)
        if count == 0:
            side.ended = True
        side.held += count
        self.passed[side.asks] += count
        if side.asks:
            self.requests += buffer.count(b"\r\nHost: ", 0, count)
        side.queue.append((due, memoryview(buffer)[:count]))
        heapq.heappush(self.due, (due, side.target.fileno()))

    def write(self, side):
        now = time.monotonic()
        while side.queue and side.queue[0][0] <= now:
            due, data = side.queue[0]
            if not data:
                side.queue.clear()
                side.target.shutdown(socket.SHUT_WR)
                side.closed = True
                return
            try:
                sent = side.target.send(data)
            except BlockingIOError:
                return
            side.held -= sent
            if sent < len(data):
                side.queue[0] = (due, data[sent:])
                return
            side.queue.popleft()
            if len(self.pool) < 256:
                self.pool.append(data.obj)

    def drop(self, number):
        for side in self.sides.get(number, ())[:1]:
            for one in (side.source, side.target):
                self.sides.pop(one.fileno(), None)
                self.masks.pop(one.fileno(), None)
                one.close()

    def serve(self, number, events):
        sends, is_sent = self.sides[number]
        try:
            if events & (select.EPOLLERR | select.EPOLLHUP) and sends.ended:
                return self.drop(number)
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self.read(sends)
            if events & select.EPOLLOUT:
                self.write(is_sent)
        except OSError:
            return self.drop(number)
        if sends.closed and is_sent.closed:
            self.drop(number)

    # Each turn costs what happened in it, not a look at every connection.
    # Otherwise a client with many of them would pay for the wire.
    def run(self):
        while True:
            later = self.due[0][0] - time.monotonic() if self.due else 1.0
            touched = set()
            for number, events in self.poll.poll(max(0, later)):
                if number == self.server.fileno():
                    self.accept()
                elif number == sys.stdin.fileno():
                    if not self.tell():
                        return
                elif number in self.sides:
                    touched |= {number, self.sides[number][0].target.fileno()}
                    self.serve(number, events)
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                touched.add(heapq.heappop(self.due)[1])
            for number in touched:
                if number in self.sides:
                    self.want(number)


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    wire = Wire((host, int(port)), float(sys.argv[2]) / 2000)
    print(wire.server.getsockname()[1], flush=True)
    wire.run()


if __name__ == "__main__":
    main()
