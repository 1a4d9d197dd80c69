package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// source gives the requests of one connection, one after the other, as the bytes that go over the wire. Nil ends it.
type source func() []byte

// loaded is what a load has brought.
type loaded struct {
	requests int // answered with 200
	refused  int // answered with 503: a machine that others keep busy lets checks run into their deadline
	lasted   time.Duration
	cpu      parties
	latency  latencies
}

func (l loaded) speed() speed {
	n := float64(l.requests)
	return speed{perSecond: n / l.lasted.Seconds(), perCPUSecond: n / l.cpu.all().Seconds()}
}

// load sends requests over keep-alive connections, one in flight on each, until their sources end. It writes prepared
// bytes and reads of an answer what it must: on two cores, whatever the load generator eats is missing to the server.
func load(ctx context.Context, address string, sources []source) (loaded, error) {
	conns := make([]net.Conn, len(sources))
	for i := range conns {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return loaded{}, err
		}
		defer conn.Close()
		conns[i] = conn
	}
	stop := context.AfterFunc(ctx, func() {
		for _, conn := range conns {
			conn.Close()
		}
	})
	defer stop()
	// One thread serves all connections with fewer system calls than two that wake each other.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var all sync.WaitGroup
	talks := make([]talk, len(sources))
	begun := time.Now()
	for i, next := range sources {
		all.Go(func() { talks[i] = converse(conns[i], next) })
	}
	all.Wait()
	result := loaded{lasted: time.Since(begun)}
	var together []time.Duration
	for _, t := range talks {
		if t.err != nil {
			return loaded{}, t.err
		}
		together = append(together, t.took...)
		result.refused += t.refused
	}
	result.requests = len(together)
	if result.requests == 0 {
		return loaded{}, errors.New("the load had no requests")
	}
	result.latency = percentiles(together)
	return result, nil
}

// talk is what one connection has seen.
type talk struct {
	took    []time.Duration // of the requests that were answered with 200
	refused int
	err     error
}

func converse(conn net.Conn, next source) (t talk) {
	buffer := make([]byte, 16<<10)
	for request := next(); request != nil; request = next() {
		begun := time.Now()
		if _, err := conn.Write(request); err != nil {
			return talk{err: fmt.Errorf("sending a request: %w", err)}
		}
		switch status, err := readAnswer(conn, buffer); {
		case err != nil:
			return talk{err: err}
		case status == http.StatusOK:
			t.took = append(t.took, time.Since(begun))
		case status == http.StatusServiceUnavailable:
			t.refused++
		default:
			return talk{err: fmt.Errorf("a request was answered with %d", status)}
		}
	}
	return t
}

var (
	protocol   = []byte("HTTP/1.1 ")
	lengthName = []byte("\r\nContent-Length: ")
	lineEnd    = []byte("\r\n")
	headEnd    = []byte("\r\n\r\n")
)

// readAnswer reads one answer, which must fit into the buffer, and returns its status.
func readAnswer(conn net.Conn, buffer []byte) (status int, err error) {
	for have := 0; ; {
		n, err := conn.Read(buffer[have:])
		if err != nil {
			return 0, fmt.Errorf("reading an answer: %w", err)
		}
		have += n
		end := bytes.Index(buffer[:have], headEnd)
		if end < 0 {
			continue
		}
		head := buffer[:end+len(lineEnd)]
		line, isHTTP := bytes.CutPrefix(head, protocol)
		_, length, hasLength := bytes.Cut(head, lengthName)
		if !isHTTP || len(line) < 3 || !hasLength {
			return 0, fmt.Errorf("the answer is not to be understood: %s", head)
		}
		digits, _, _ := bytes.Cut(length, lineEnd)
		body, lengthErr := strconv.Atoi(string(digits))
		status, statusErr := strconv.Atoi(string(line[:3]))
		if err := errors.Join(lengthErr, statusErr); err != nil {
			return 0, fmt.Errorf("the answer is not to be understood: %w", err)
		}
		if have >= end+len(headEnd)+body {
			return status, nil
		}
	}
}
