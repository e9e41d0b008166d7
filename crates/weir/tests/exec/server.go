// A server as Go's users write them: since Go 1.24 it listens with MPTCP where it can.
package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(os.Stdout, r.RemoteAddr)
		fmt.Fprintln(w, "served")
	})
	http.ListenAndServe(os.Args[1], nil)
}
