// client.go ORIGIN REVERSE FORWARD
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

var compared atomic.Int64

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func client(proxy func(*http.Request) (*url.URL, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{Proxy: proxy}, Timeout: 30 * time.Second}
}

func body(reply *http.Response, err error) []byte {
	check(err)
	defer reply.Body.Close()
	bytes, err := io.ReadAll(reply.Body)
	check(err)
	return bytes
}

func same(what string, expected, got []byte) {
	if !bytes.Equal(expected, got) {
		log.Fatalf("%s: %d bytes expected, %d got, or others", what, len(expected), len(got))
	}
	compared.Add(1)
}

// onlyReader hides the length, so that the body is sent in chunks.
type onlyReader struct{ io.Reader }

// tunnelled asks for the path on a connection made with CONNECT.
func tunnelled(forward, origin *url.URL, path string) []byte {
	connection, err := net.Dial("tcp", forward.Host)
	check(err)
	defer connection.Close()
	fmt.Fprintf(connection, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", origin.Host, origin.Host)
	reader := bufio.NewReader(connection)
	reply, err := http.ReadResponse(reader, &http.Request{Method: "CONNECT"})
	check(err)
	if reply.StatusCode != 200 {
		log.Fatal(reply.Status)
	}
	fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, origin.Host)
	return body(http.ReadResponse(reader, nil))
}

func main() {
	origin, reverse, forward := os.Args[1], os.Args[2], os.Args[3]
	forwardURL, err := url.Parse(forward)
	check(err)
	originURL, err := url.Parse(origin)
	check(err)
	direct, through := client(nil), client(http.ProxyURL(forwardURL))
	var all sync.WaitGroup
	for _, size := range []int{0, 1, 1000, 65535, 65536, 65537, 262144, 3000000} {
		all.Add(1)
		go func() {
			defer all.Done()
			for _, framing := range []string{"length", "chunked", "close"} {
				path := fmt.Sprintf("/%s/%d", framing, size)
				expected := body(direct.Get(origin + path))
				same("reverse "+path, expected, body(direct.Get(reverse+path)))
				same("forward "+path, expected, body(through.Get(origin+path)))
				same("CONNECT "+path, expected, tunnelled(forwardURL, originURL, path))
				known, hidden := bytes.NewReader(expected), onlyReader{bytes.NewReader(expected)}
				same("POST", expected, body(direct.Post(reverse+"/echo", "x/y", known)))
				same("POST chunked", expected, body(through.Post(origin+"/echo", "x/y", hidden)))
			}
		}()
	}
	all.Wait()
	fmt.Println(compared.Load(), "compared")
}
