"""Reserves TCP ports on this machine for ranks that start later."""

import socket

LOOPBACK = "127.0.0.1"


def reserve_port() -> socket.socket:
    """Return a socket that keeps a free port reserved until the socket is closed.

    Without it, another program could get the port before rank 0 listens at it. Linux gives a bound
    port neither to a new connection nor to a program that asks for any free port. Rank 0 can still
    listen at it, because both sockets allow their address to be reused and this one never listens.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((LOOPBACK, 0))
    return reservation


def port_of(reservation: socket.socket) -> int:
    """Return a reserved port number."""
    port: int = reservation.getsockname()[1]
    return port
