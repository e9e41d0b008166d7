"""program.py connect|listen ADDRESS PORT WISH: asks for one socket, then prints what a server says until it closes, or
says "hello" to each client and closes."""

import errno
import socket
import sys

role, address, port, wish = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
try:
    s.setsockopt(0x57454952, 1, wish)
except OSError as error:
    if error.errno != errno.ENOPROTOOPT:
        raise
print("asked", wish)
if role == "connect":
    try:
        s.connect((address, port))
    except OSError as error:
        print("connect:", error.errno)
        sys.exit()
    while reply := s.recv(64):
        print(reply.decode())
    s.close()
else:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    s.listen(16)
    while True:
        connection, _ = s.accept()
        connection.sendall(b"hello")
        connection.close()
