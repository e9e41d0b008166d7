"""Clients with TLS 1.3 that come by chance, each with a connection and a request of its own.

Prints how many of those that came after the warm-up were served, refused and neither, and the median and the 99th percentile
of the served, in seconds, as JSON.
"""

import asyncio
import json
import random
import ssl
import sys

HOST, PORT = sys.argv[1], int(sys.argv[2])
RATE, WARM_UP, LENGTH = (float(word) for word in sys.argv[3:])
PATIENCE = 10
# Full handshakes: a client that has been here before would resume.
CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
CONTEXT.check_hostname = False
CONTEXT.verify_mode = ssl.CERT_NONE
CONTEXT.minimum_version = ssl.TLSVersion.TLSv1_3


async def visit():
    reader, writer = await asyncio.open_connection(HOST, PORT, ssl=CONTEXT)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        return (await reader.readline()).split()[1:2] == [b"200"]
    finally:
        writer.transport.abort()


async def client(fates):
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        served = await asyncio.wait_for(visit(), PATIENCE)
        fates.append(loop.time() - begun if served else "lost")
    except ConnectionRefusedError:
        fates.append("refused")
    except (OSError, asyncio.TimeoutError):
        fates.append("lost")


async def main():
    loop, chance, clients = asyncio.get_running_loop(), random.Random(33), []
    before, counted = [], []
    begun = due = loop.time()
    while due - begun < WARM_UP + LENGTH:
        due += chance.expovariate(RATE)
        await asyncio.sleep(due - loop.time())
        counts = due - begun > WARM_UP
        clients.append(asyncio.create_task(client(counted if counts else before)))
    await asyncio.gather(*clients)
    times = sorted(fate for fate in counted if isinstance(fate, float))
    quantile = lambda share: times[int(len(times) * share)] if times else 0
    print(json.dumps({
        "served": len(times),
        "refused": counted.count("refused"),
        "lost": counted.count("lost"),
        "p50": quantile(0.5),
        "p99": quantile(0.99),
    }))


asyncio.run(main())
