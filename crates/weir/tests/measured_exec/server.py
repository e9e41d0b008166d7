"""A server that says on stdout whom it accepts: ADDRESS PORT, one a line, in the order of accept().

    server.py KIND ADDRESS PORT [BACKLOG]
"""

import ctypes, fcntl, os, select, signal, socket, struct, sys

kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
backlog = int(sys.argv[4]) if len(sys.argv) > 4 else 512
family = socket.AF_INET6 if ":" in address else socket.AF_INET
listener = socket.socket(family, socket.SOCK_STREAM)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, port))
listener.listen(backlog)


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def serve(client, peer):
    assert client.getpeername() == peer, (client.getpeername(), peer)
    assert not os.get_inheritable(client.fileno())
    say(peer[0], peer[1])
    client.setblocking(True)
    client.recv(100)
    client.sendall(b"served\n")
    client.close()


def by_edges(poller):
    while True:
        for _ in poller.poll():
            while True:
                try:
                    serve(*listener.accept())
                except BlockingIOError:
                    break


def by_levels(poller, times=None):
    while times is None or times > 0:
        for _ in poller.poll():
            try:
                serve(*listener.accept())
            except BlockingIOError:
                pass
        times = times and times - 1


def by_levels_with_a_pause(poller):
    """Three are accepted; the rest after SIGUSR2."""
    by_levels(poller, times=3)
    say("pauses")
    signal.sigwait([signal.SIGUSR2])
    by_levels(poller)


def by_flags():
    """accept4() as C has it, with each of its flags."""
    accept4 = ctypes.CDLL(None, use_errno=True).accept4
    for flags in [0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK]:
        fd = accept4(listener.fileno(), None, None, flags)
        cloexec = fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        nonblock = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
        say(flags & socket.SOCK_CLOEXEC != 0, flags & socket.SOCK_NONBLOCK != 0, cloexec != 0, nonblock != 0)
        os.close(fd)
    # The address is cut to the room that there is, and its whole length is told.
    address, length = ctypes.create_string_buffer(b"\xff" * 16, 16), ctypes.c_uint32(4)
    fd = accept4(listener.fileno(), address, ctypes.byref(length), 0)
    family = int.from_bytes(address.raw[:2], sys.byteorder)
    say(fd > 2, family == socket.AF_INET, address.raw[4:] == b"\xff" * 12, length.value)
    say(accept4(listener.fileno(), None, None, 1), ctypes.get_errno())
    timeout = struct.pack("@ll", 0, 50000)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    say(accept4(listener.fileno(), None, None, 0), ctypes.get_errno())


def interrupted(*_):
    say("interrupted")
    sys.exit(7)


signal.signal(signal.SIGUSR1, interrupted)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
say("listening", os.getpid())
if kind == "blocking":
    while True:
        serve(*listener.accept())
if kind == "one":
    serve(*listener.accept())
    signal.pause()
if kind == "flags":
    by_flags()
    sys.exit()
poller = select.epoll()
listener.setblocking(False)
edge = select.EPOLLET if kind == "edge" else 0
poller.register(listener, select.EPOLLIN | edge)
{"edge": by_edges, "level": by_levels, "pausing": by_levels_with_a_pause}[kind](poller)
