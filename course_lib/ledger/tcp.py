"""Bytes that really left a process over TCP: the ledger books what an algorithm must send at least."""

from __future__ import annotations

import os
import socket
import struct

BYTES_SENT = 200  # where struct tcp_info has tcpi_bytes_sent, since Linux 4.19


def wire_bytes() -> int:
    """Return the bytes this process has sent over its open TCP connections so far, as Linux counts them.

    Bytes that TCP had to send again are counted again. Notebook 02 writes this function out.
    """
    total = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(fd)))
        except OSError:
            continue  # not a socket, or no longer open
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("Q", info, BYTES_SENT)[0]
    return total
