#!/usr/bin/env python3
"""Writes gunicorn.txt: the request corpus of gunicorn, as rows.

    pip download --no-deps --no-binary :all: gunicorn==27.0.1
    ./import_gunicorn.py gunicorn-27.0.1.tar.gz >gunicorn.txt

A row is: name | settings | expectation | bytes. Settings are gunicorn's own, `-` for none. The
expectation is the name of gunicorn's error, or for each request its method, target and the number of
bytes of its body, parted by `;`.
"""

import re
import sys
import tarfile
import types

HEADER = """\
# The request corpus of {source}, as rows: name | settings | expectation | bytes.
# Written by import_gunicorn.py, not by hand.
#
{licence}
"""


class Settings(dict):
    """Stands for gunicorn.config.Config; remembers what a case sets."""

    def set(self, name, value):
        self[name] = value


class Errors(types.ModuleType):
    """Stands for gunicorn.http.errors: a name for each error."""

    def __getattr__(self, name):
        return name


def stub_gunicorn():
    modules = {name: types.ModuleType(name) for name in ("gunicorn", "gunicorn.http")}
    modules["gunicorn.config"] = config = types.ModuleType("gunicorn.config")
    config.Config = Settings
    modules["gunicorn.http.errors"] = Errors("gunicorn.http.errors")
    sys.modules.update(modules)


def bytes_of(case):
    """As gunicorn's tests/treq.py reads its files."""
    case = case.replace(b"\n", b"").replace(b"\\r\\n", b"\r\n")
    case = case.replace(b"\\0", b"\0").replace(b"\\n", b"\n").replace(b"\\t", b"\t")
    return re.sub(rb"\\x([0-9a-fA-F]{2})", lambda m: bytes([int(m[1], 16)]), case)


def escaped(data):
    named = {0x5C: "\\\\", 0x0D: "\\r", 0x0A: "\\n", 0x09: "\\t", 0: "\\0"}
    return "".join(
        named.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}") for byte in data
    )


def expectation(request):
    if isinstance(request, str):
        return request
    requests = request if isinstance(request, list) else [request]
    return ";".join(f"{r['method']} {r['uri']} {len(r['body'])}" for r in requests)


def row(name, case, python):
    scope = {"uri": lambda raw: escaped(raw.encode("latin-1", "replace")), "cfg": Settings()}
    exec(python, scope)  # the corpus states its expectations in Python
    settings = ",".join(f"{key}={value}" for key, value in scope["cfg"].items()) or "-"
    return " | ".join((name, settings, expectation(scope["request"]), escaped(bytes_of(case))))


def main():
    stub_gunicorn()
    (path,) = sys.argv[1:]
    with tarfile.open(path) as sdist:
        files = {
            member.name.split("/", 1)[1]: sdist.extractfile(member).read()
            for member in sdist.getmembers()
            if member.isfile() and "/" in member.name
        }
    source = path.rsplit("/", 1)[-1].removesuffix(".tar.gz")
    licence = files["LICENSE"].decode().splitlines()
    licence = "\n".join(f"# {line}".rstrip() for line in licence)
    print(HEADER.format(source=source, licence=licence))
    for name in sorted(files):
        case = re.fullmatch(r"tests/requests/((?:in)?valid/.*)\.http", name)
        if case:
            python = files[name.removesuffix("http") + "py"]
            print(row(case[1], files[name], python))


if __name__ == "__main__":
    main()
