// program connect|listen ADDRESS PORT WISH: see program.py.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
)

func main() {
	role, address := os.Args[1], net.JoinHostPort(os.Args[2], os.Args[3])
	wish, _ := strconv.Atoi(os.Args[4])
	ask := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), 0x57454952, 1, wish) })
	}
	fmt.Println("asked", wish)
	if role == "connect" {
		dialer := net.Dialer{Control: ask}
		connection, err := dialer.Dial("tcp", address)
		var errno syscall.Errno
		if errors.As(err, &errno) {
			fmt.Printf("connect: %d\n", int(errno))
			return
		}
		reply, _ := io.ReadAll(connection)
		fmt.Println(string(reply))
		connection.Close()
		return
	}
	listen := net.ListenConfig{Control: ask}
	listen.SetMultipathTCP(false)
	listener, err := listen.Listen(context.Background(), "tcp4", address)
	if err != nil {
		panic(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		connection.Write([]byte("hello"))
		connection.Close()
	}
}
