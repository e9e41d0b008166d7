// client.mjs ORIGIN REVERSE FORWARD
import http from "node:http";

const [origin, reverse, forward] = process.argv.slice(2).map((url) => new URL(url));
const agent = new http.Agent({ keepAlive: true, maxSockets: 2 });
let compared = 0;

function exchange(server, options, body) {
  return new Promise((resolve, reject) => {
    const all = { host: server.hostname, port: server.port, agent, timeout: 30000, ...options };
    const request = http.request(all, async (reply) => {
      const parts = [];
      for await (const part of reply) parts.push(part);
      resolve(Buffer.concat(parts));
    });
    request.on("error", reject);
    request.on("timeout", () => request.destroy(new Error("timeout")));
    if (body) request.write(body);
    request.end();
  });
}

function tunnel() {
  return new Promise((resolve, reject) => {
    const { hostname: host, port } = forward;
    const request = http.request({ host, port, method: "CONNECT", path: origin.host });
    request.on("connect", (reply, socket) => resolve(socket)).on("error", reject).end();
  });
}

function same(what, expected, got) {
  if (!expected.equals(got)) throw new Error(`${what}: ${expected.length} bytes, ${got.length} got`);
  compared += 1;
}

for (const size of [0, 1, 1000, 65535, 65536, 65537, 262144, 3000000]) {
  for (const framing of ["length", "chunked", "close"]) {
    const path = `/${framing}/${size}`;
    const expected = await exchange(origin, { path });
    same(`reverse ${path}`, expected, await exchange(reverse, { path }));
    const headers = { host: origin.host };
    same(`forward ${path}`, expected, await exchange(forward, { path: origin.origin + path, headers }));
    const socket = await tunnel();
    const through = { path, agent: undefined, createConnection: () => socket };
    same(`CONNECT ${path}`, expected, await exchange(origin, through));
    socket.destroy();
    const post = { method: "POST", path: "/echo" };
    same("POST chunked", expected, await exchange(reverse, post, expected));
    const length = { "Content-Length": size };
    same("POST", expected, await exchange(reverse, { ...post, headers: length }, expected));
  }
}
console.log(compared, "compared");
agent.destroy();
