"""A server that says on stdout whom it accepts: ADDRESS PORT, one a line, in the order of accept()."""

import os, select, signal, socket, sys

kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
listener = socket.socket(family, socket.SOCK_STREAM)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, port))
listener.listen(512)


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


def by_levels(poller):
    while True:
        for _ in poller.poll():
            try:
                serve(*listener.accept())
            except BlockingIOError:
                pass


def interrupted(*_):
    say("interrupted")
    sys.exit(7)


signal.signal(signal.SIGUSR1, interrupted)
say("listening", os.getpid())
if kind == "blocking":
    while True:
        serve(*listener.accept())
poller = select.epoll()
listener.setblocking(False)
edge = select.EPOLLET if kind == "edge" else 0
poller.register(listener, select.EPOLLIN | edge)
by_edges(poller) if edge else by_levels(poller)
