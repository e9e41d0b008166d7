// server PORT: replies with the number of the accept.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
)

type number struct{}

func main() {
	accepts := 0
	server := http.Server{
		Addr: "0.0.0.0:" + os.Args[1],
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "stamp=%d\n", r.Context().Value(number{}))
		}),
		// Called by the loop that accepts.
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			accepts++
			return context.WithValue(ctx, number{}, accepts)
		},
	}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}
