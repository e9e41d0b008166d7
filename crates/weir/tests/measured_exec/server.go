// A server as Go's users write them: since Go 1.24 it listens with MPTCP where it can.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
)

// A listener that says whom it accepts.
type telling struct{ net.Listener }

func (t telling) Accept() (net.Conn, error) {
	c, err := t.Listener.Accept()
	if err == nil {
		host, port, _ := net.SplitHostPort(c.RemoteAddr().String())
		fmt.Println(host, port)
	}
	return c, err
}

func main() {
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		panic(err)
	}
	fmt.Println("listening", os.Getpid())
	http.Serve(telling{l}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "served")
	}))
}
