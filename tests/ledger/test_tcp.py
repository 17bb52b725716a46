"""The bytes of a process's TCP connections, as Linux counts them."""

from __future__ import annotations

import socket

from course_lib.ledger.tcp import wire_bytes


def test_what_is_sent_over_tcp_is_counted_and_nothing_else() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(server.getsockname())
    receiver, _ = server.accept()
    left, right = socket.socketpair()  # not over TCP
    with server, sender, receiver, left, right:
        before = wire_bytes()
        sender.sendall(bytes(1000))
        left.sendall(bytes(500))
        received = 0
        while received < 1000:
            received += len(receiver.recv(4096))
        assert wire_bytes() - before == 1000
