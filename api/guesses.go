package api

import (
	"net"
	"net/http"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

const (
	// guessesAtOnce unknown keys are looked up for an address, and guessesPerSecond after that. A person who mistypes is not
	// stopped; somebody who tries keys takes 5 look-ups of the some ten thousand that the access path can do in a second.
	guessesAtOnce    = 50
	guessesPerSecond = 5
	// maxGuessers bounds the memory: 10,000 addresses take about 2 MB.
	maxGuessers = 10_000
)

// guesses counts unknown keys by the address that they come from. A key that is good costs nothing; one that this process
// has not seen yet waits with the others while its address is over the limit.
type guesses struct {
	mu sync.Mutex
	by map[string]*guesser
}

type guesser struct {
	left   *rate.Limiter
	asking int // look-ups under way: each may turn out to be a guess
}

func newGuesses() *guesses { return &guesses{by: map[string]*guesser{}} }

// begin reports whether another key of the address may be looked up; then end is to be called after it.
func (g *guesses) begin(address string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one, known := g.by[address]
	if !known {
		if len(g.by) >= maxGuessers {
			g.forget()
		}
		one = &guesser{left: rate.NewLimiter(guessesPerSecond, guessesAtOnce)}
		g.by[address] = one
	}
	if one.left.Tokens()-float64(one.asking) < 1 {
		return false
	}
	one.asking++
	return true
}

func (g *guesses) end(address string, unknown bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one, known := g.by[address]
	if !known { // all were forgotten meanwhile
		return
	}
	one.asking = max(one.asking-1, 0)
	if unknown {
		one.left.Allow()
	}
}

// forget drops who has not guessed for some seconds; where all have, everybody begins anew.
func (g *guesses) forget() {
	for address, one := range g.by {
		if one.asking == 0 && one.left.Tokens() >= guessesAtOnce {
			delete(g.by, address)
		}
	}
	if len(g.by) >= maxGuessers {
		clear(g.by)
	}
}

func tooManyGuesses() error {
	p := problem(http.StatusTooManyRequests, "too_many_unknown_keys", "Too many unknown keys came from this address; try again in a second.")
	p.retryAfter = "1"
	return p
}

// remoteAddress is who the connection from remote (host:port) comes from: an IPv4 address, or the /64 of an IPv6 address, which is what one
// customer of a provider has. Headers of proxies are not believed: anybody can write them.
func remoteAddress(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	address = address.Unmap().WithZone("")
	if address.Is4() {
		return address.String()
	}
	network, err := address.Prefix(64)
	if err != nil {
		return host
	}
	return network.String()
}
