// server.mjs PORT: replies with the number of the accept.
import http from "node:http";

let accepts = 0;
const server = http.createServer((request, response) => {
  response.setHeader("Connection", "close");
  response.end(`stamp=${request.socket.number}\n`);
});
server.on("connection", (socket) => {
  socket.number = accepts++;
});
server.listen({ port: Number(process.argv[2]), host: "0.0.0.0", backlog: 512 });
