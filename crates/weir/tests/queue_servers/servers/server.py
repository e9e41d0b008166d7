"""A server in one of four ways of waiting: server.py WAY PORT [SERVICE_S]. Replies with the number of the accept,
after SERVICE_S, as one does that waits for a database."""
import http.server
import itertools
import select
import socket
import sys
import time

WAY, PORT = sys.argv[1], int(sys.argv[2])
SERVICE_S = float(sys.argv[3]) if len(sys.argv) > 3 else 0
numbers = itertools.count()


def listener():
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", PORT))
    server.listen(512)
    return server


def serve(connection):
    number = next(numbers)
    try:
        connection.setblocking(True)
        connection.recv(4096)
        if SERVICE_S:
            time.sleep(SERVICE_S)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nstamp=%d\n" % number)
    except OSError:
        pass
    connection.close()


def blocking():
    server = listener()
    while True:
        serve(server.accept()[0])


def accept_all(server):
    """As one has to when told only of changes."""
    while True:
        try:
            yield server.accept()[0]
        except BlockingIOError:
            return


def epoll(flags):
    server = listener()
    server.setblocking(False)
    poll = select.epoll()
    poll.register(server, select.EPOLLIN | flags)
    while True:
        poll.poll()
        waiting = accept_all(server)
        for connection in waiting if flags else itertools.islice(waiting, 1):
            serve(connection)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"stamp=%d\n" % next(numbers))

    def log_message(self, *_):
        pass


class Server(http.server.HTTPServer):
    """Waits with the module selectors."""

    request_queue_size = 512


if WAY == "blocking":
    blocking()
elif WAY == "selectors":
    Server(("", PORT), Handler).serve_forever()
elif WAY == "level":
    epoll(0)
elif WAY == "edge":
    epoll(select.EPOLLET)
