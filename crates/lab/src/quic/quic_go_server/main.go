// A server of HTTP/3 on quic-go, which answers every request with a word.
//
// Arguments: the address to listen at, the certificate and its key (PEM).
package main

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"

	"github.com/quic-go/quic-go/http3"
)

func main() {
	certificate, err := tls.LoadX509KeyPair(os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Each handshake is a full one.
	security := &tls.Config{Certificates: []tls.Certificate{certificate}, SessionTicketsDisabled: true}
	server := http3.Server{
		Addr:      os.Args[1],
		TLSConfig: http3.ConfigureTLSConfig(security),
		Handler: http.HandlerFunc(func(to http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(to, "hello")
		}),
	}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}
