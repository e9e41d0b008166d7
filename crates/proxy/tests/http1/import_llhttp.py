#!/usr/bin/env python3
"""Writes llhttp.txt: the cases of llhttp, the parser of Node.js, as rows.

    pip download --no-deps --no-binary aiohttp aiohttp==3.14.5
    ./import_llhttp.py aiohttp-3.14.5.tar.gz >llhttp.txt

aiohttp ships llhttp's sources with their tests. Only those are taken that llhttp runs without one of
its lenient switches, and not those that pause it. A row is: name | request or response | expectation |
bytes. The expectation is `error` and llhttp's reason, or the number of body bytes of each message that
is complete, parted by `;`; `+` stands for one that is not.
"""

import json
import re
import sys
import tarfile

from import_gunicorn import escaped

HEADER = """\
# The cases of llhttp {version}, shipped in {source}, as rows: name | type | expectation | bytes.
# Written by import_llhttp.py, not by hand.
#
{licence}
"""
# What llhttp calls errors where it has read messages and stops, as it must.
NO_ERRORS = "Pause on CONNECT/Upgrade", "Data after `Connection: close`"
CASE = re.compile(
    r"^#+ (?P<title>[^\n]+)\n(?:(?!^#+ ).)*?<!-- meta=(?P<meta>\{[^}]*\}) -->\n"
    r"```http\n(?P<input>(?:(?!```).)*)```\n(?:(?!```).)*?```log\n(?P<log>.*?)```",
    re.M | re.S,
)


def bytes_of(text):
    """As llhttp's test/md-test.ts reads its files; None for those that are programs."""
    text = text.removesuffix("\n")
    text = re.sub(r"\\(\r\n|\r|\n)", "", text)
    text = re.sub(r"\r\n|\r|\n", "\r\n", text)
    for name, byte in ("r", "\r"), ("n", "\n"), ("t", "\t"), ("f", "\f"):
        text = text.replace("\\" + name, byte)
    text = re.sub(r"\\x([0-9a-fA-F]+)", lambda m: chr(int(m[1], 16)), text)
    text = re.sub(r"\\([0-7]{1,3})", lambda m: chr(int(m[1], 8)), text)
    return None if "${" in text else text.encode()


def expectation(log):
    error = re.search(r'error code=\d+ reason="(.*?)"', log)
    if error and error[1] not in NO_ERRORS:
        return f"error {error[1]}"
    messages = re.split(r"^off=\d+ message begin\n", log, flags=re.M)[1:]
    bodies = []
    for message in messages:
        body = sum(int(n) for n in re.findall(r"len=(\d+) span\[body\]", message))
        bodies.append(str(body) if "message complete" in message else "+")
    return ";".join(bodies)


def rows(name, text):
    titles = []
    for case in CASE.finditer(text):
        meta = json.loads(case["meta"])
        is_strict = meta["type"] in ("request", "response")
        data = bytes_of(case["input"])
        if is_strict and data is not None and not {"pause", "skipBody", "skip"} & meta.keys():
            title = case["title"].replace("`", "").replace("|", "/")
            titles.append(title)
            if titles.count(title) > 1:
                title += f" #{titles.count(title)}"
            yield " | ".join((f"{name}: {title}", meta["type"], expectation(case["log"]), escaped(data)))


def main():
    (path,) = sys.argv[1:]
    folder = re.compile(r"[^/]+/vendor/llhttp/(test/(?:request|response)/.*\.md|LICENSE|package\.json)")
    with tarfile.open(path) as sdist:
        matches = ((folder.fullmatch(member.name), member) for member in sdist.getmembers())
        files = {match[1]: sdist.extractfile(member).read().decode() for match, member in matches if match}
    licence = "\n".join(f"# {line}".rstrip() for line in files.pop("LICENSE").splitlines())
    version = json.loads(files.pop("package.json"))["version"]
    source = path.rsplit("/", 1)[-1].removesuffix(".tar.gz")
    print(HEADER.format(version=version, source=source, licence=licence))
    for name, text in sorted(files.items()):
        for row in rows(name.removeprefix("test/").removesuffix(".md"), text):
            print(row)


if __name__ == "__main__":
    main()
