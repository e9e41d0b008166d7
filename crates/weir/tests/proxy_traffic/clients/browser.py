"""browser.py ORIGIN REVERSE FORWARD: a headless Chromium loads a page and its parts through FORWARD.

Once over http (absolute URIs) and once over https (CONNECT), from a server of its own. A script of the
page reads each part byte by byte and writes its length and a checksum into the page.
"""

import http.server
import pathlib
import random
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading

_, _, forward = sys.argv[1:]
BROWSERS = "chromium-headless-shell", "chromium-shell", "chromium", "google-chrome"
SIZES = [0, 1, 1000, 65535, 65536, 65537, 262144, 3_000_000]
PARTS = {size: random.Random(size).randbytes(size) for size in SIZES}
PAGE = b"""<!doctype html><title>waiting</title>
<link rel=stylesheet href=/style.css><img src=/picture.svg><script src=/script.js></script>"""
PICTURE = b'<svg xmlns="http://www.w3.org/2000/svg" width="321" height="123"/>'
SCRIPT = """
const sums = [];
for (const size of %s) {
    const request = new XMLHttpRequest();
    request.open("GET", "/part/" + size, false);
    request.overrideMimeType("text/plain; charset=x-user-defined");
    request.send();
    let sum = 1;
    for (const byte of request.responseText) sum = (sum * 31 + (byte.charCodeAt(0) & 255)) %% 4294967291;
    sums.push(request.responseText.length + ":" + sum);
}
addEventListener("load", () => {
    const image = document.querySelector("img");
    const width = getComputedStyle(document.body).width;
    document.title = ["seen", image.naturalWidth, width, ...sums].join(" ");
});
""" % SIZES
FILES = {
    "/": ("text/html", PAGE),
    "/style.css": ("text/css", b"body { width: 417px }"),
    "/picture.svg": ("image/svg+xml", PICTURE),
    "/script.js": ("text/javascript", SCRIPT.encode()),
    **{f"/part/{size}": ("application/octet-stream", data) for size, data in PARTS.items()},
}


def checksum(data):
    total = 1
    for byte in data:
        total = (total * 31 + byte) % 4294967291
    return f"{len(data)}:{total}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    vias = []

    def do_GET(self):
        kind, data = FILES.get(self.path, ("text/plain", b""))
        self.vias.append((self.path, self.headers.get("Via")))
        self.send_response(200 if self.path in FILES else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def serve(context=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def certificate(folder):
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def title_of(url, folder):
    browser = next(path for path in map(shutil.which, BROWSERS) if path)
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    # No name is resolved and no address is near: only through the proxy is there a way.
    command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    command += [f"--proxy-server={forward}", "--proxy-bypass-list=<-loopback>"]
    command += ["--ignore-certificate-errors", f"--user-data-dir={folder}", "--dump-dom", url]
    said = subprocess.run(command, capture_output=True, timeout=100)
    title = re.search(rb"<title>(.*?)</title>", said.stdout)
    return title[1].decode() if title else said.stderr.decode()[-2000:]


wanted = " ".join(["seen", "321", "417px", *map(checksum, PARTS.values())])
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    folder = pathlib.Path(folder)
    urls = f"http://localhost:{serve()}/", f"https://localhost:{serve(certificate(folder))}/"
    for url, via in zip(urls, ("1.1 weir", None)):
        Handler.vias.clear()
        got = title_of(url, folder / "profile")
        assert got == wanted, f"{url}: wanted {wanted}, got {got}"
        paths = dict(Handler.vias)
        assert set(FILES) <= set(paths) and set(paths.values()) == {via}, paths
print(2 * len(FILES), "compared")
