"""One attempt of aioquic to connect: how it ends, and when.

Prints one line: "connected", or why the attempt was given up, after the time at which it was (ns since 1970).
"""

import asyncio
import ssl
import sys
import time

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted


class Attempt(QuicConnectionProtocol):
    """Says how it ended as soon as it has."""

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted):
            print(time.time_ns(), "connected", flush=True)
        elif isinstance(event, ConnectionTerminated):
            print(time.time_ns(), event.reason_phrase, flush=True)


async def main(host, port):
    # Its own certificate is not what is asked about.
    configuration = QuicConfiguration(alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE)
    try:
        async with connect(host, int(port), configuration=configuration, create_protocol=Attempt):
            pass
    except ConnectionError:
        pass


asyncio.run(main(*sys.argv[1:]))
