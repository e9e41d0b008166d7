// SPDX-License-Identifier: GPL-2.0-or-later
/* program connect|listen ADDRESS PORT WISH: see program.py. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])) };
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	char reply[64] = "";

	(void)argc;
	inet_pton(AF_INET, argv[2], &address.sin_addr);
	int timewait = atoi(argv[4]);
	if (setsockopt(s, 0x57454952, 1, &timewait, sizeof(timewait)) && errno != ENOPROTOOPT)
		perror("timewait");
	printf("asked %d\n", timewait);
	if (strcmp(argv[1], "connect") == 0) {
		if (connect(s, (struct sockaddr *)&address, sizeof(address))) {
			printf("connect: %d\n", errno);
			return 0;
		}
		while (read(s, reply, sizeof(reply) - 1) > 0)
			printf("%s\n", reply);
		close(s);
		return 0;
	}
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(s, (struct sockaddr *)&address, sizeof(address)) || listen(s, 16))
		return 1;
	for (;;) {
		int connection = accept(s, NULL, NULL);

		if (connection < 0 || write(connection, "hello", 5) != 5)
			return 1;
		close(connection);
	}
}
