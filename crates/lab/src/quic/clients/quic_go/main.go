// One attempt of quic-go to connect: how it ends, and when.
//
// Prints one line: "connected", or why the attempt was given up, after the time at which it was (ns since 1970).
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"time"

	"github.com/quic-go/quic-go"
)

func main() {
	// Its own certificate is not what is asked about.
	security := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}
	connection, err := quic.DialAddr(context.Background(), os.Args[1], security, nil)
	ended := time.Now().UnixNano()
	if err != nil {
		fmt.Println(ended, err)
		return
	}
	fmt.Println(ended, "connected")
	connection.CloseWithError(0x100, "")
}
