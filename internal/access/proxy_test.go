package access_test

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between a pool and PostgreSQL. It can lose what is sent, hold it back, and cut.
type proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	changed *sync.Cond
	mode    mode
	conns   []net.Conn
}

type mode int

const (
	passing mode = iota
	losing       // what is sent is gone, and nobody is told
	holding      // what is sent waits
)

// through returns the URL of the same database behind a proxy.
func through(t *testing.T, databaseURL string) (string, *proxy) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, target: u.Host}
	p.changed = sync.NewCond(&p.mu)
	go p.serve()
	t.Cleanup(func() { p.refuse(); p.set(passing) })
	u.Host = listener.Addr().String()
	return u.String(), p
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target) //nolint:noctx // ends with the test's server
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		go p.pipe(client, server)
		go p.pipe(server, client)
	}
}

func (p *proxy) pipe(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		for p.mode == holding {
			p.changed.Wait()
		}
		lost := p.mode == losing
		p.mu.Unlock()
		if lost {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) set(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	p.changed.Broadcast()
}

// cut closes every connection. New ones are taken.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// refuse closes every connection and takes no new one, ever.
func (p *proxy) refuse() {
	_ = p.listener.Close()
	p.cut()
}
