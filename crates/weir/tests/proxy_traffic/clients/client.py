"""client.py ORIGIN REVERSE FORWARD: requests where it is installed, urllib and http.client always."""

import http.client
import sys
import urllib.parse
import urllib.request

origin, reverse, forward = sys.argv[1:]
SIZES = [0, 1, 1000, 65535, 65536, 65537, 262144, 3_000_000]
compared = 0


def same(what, expected, got):
    global compared
    assert expected == got, f"{what}: {len(expected)} bytes expected, {len(got)} got, or others"
    compared += 1


def opener(**proxies):
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies)).open


def tunnel():
    proxy, server = (urllib.parse.urlsplit(url) for url in (forward, origin))
    connection = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=30)
    connection.set_tunnel(server.hostname, server.port)
    return connection


direct, through = opener(), opener(http=forward)
tunnelled = tunnel()
for size in SIZES:
    for framing in "length", "chunked":
        path = f"/{framing}/{size}"
        expected = direct(origin + path).read()
        same(f"urllib reverse {path}", expected, direct(reverse + path).read())
        same(f"urllib forward {path}", expected, through(origin + path).read())
        tunnelled.request("GET", path)
        same(f"http.client CONNECT {path}", expected, tunnelled.getresponse().read())
    tunnelled.request("POST", "/echo", body=expected)
    same(f"http.client CONNECT POST {size}", expected, tunnelled.getresponse().read())

try:
    import requests
except ImportError:
    print("without requests")
else:
    session, proxied = requests.Session(), requests.Session()
    session.trust_env = proxied.trust_env = False
    proxied.proxies = {"http": forward}
    for size in SIZES:
        for framing in "length", "chunked", "close":
            path = f"/{framing}/{size}"
            expected = direct(origin + path).read()
            same(f"requests reverse {path}", expected, session.get(reverse + path).content)
            same(f"requests forward {path}", expected, proxied.get(origin + path).content)
        same(f"requests POST {size}", expected, session.post(reverse + "/echo", expected).content)
        pieces = (expected[at : at + 7777] for at in range(0, size, 7777))
        same(f"requests POST chunked {size}", expected, proxied.post(origin + "/echo", pieces).content)

print(compared, "compared")
