package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/singleflight"

	"termkeeper/internal/secret"
	"termkeeper/internal/store"
)

// role is what a key may do. Each role may do what the ones before it may.
type role int

const (
	public       role = iota // no key is asked for
	roleAccess               // access checks only
	roleGateway              // what a model gateway asks and reports
	roleOperator             // read all, and what keeps things running
	roleAdmin                // all
)

var roleNames = [...]string{roleAccess: "access", roleGateway: "gateway", roleOperator: "operator", roleAdmin: "admin"}

// Roles are the names of the roles, the weakest first.
func Roles() []string { return append([]string(nil), roleNames[roleAccess:]...) }

func roleNamed(name string) role {
	for r, n := range roleNames {
		if n == name && n != "" {
			return role(r)
		}
	}
	return public
}

const (
	// keyAge is how long a key is taken from memory. A revoked key stops within this and the time of a look-up.
	keyAge = time.Second
	// keyRefresh is the age from which a key in use is looked up again, while it is still taken from memory: at the end of
	// its age all who use it would wait for the database at once.
	keyRefresh = keyAge / 2
	// keyDeadline bounds a look-up, which is a part of an access check.
	keyDeadline = accessDeadline
)

// identity is who asks.
type identity struct {
	role role
	id   string
	name string
}

// actor is how the history names who did something.
func (i identity) actor() string { return "apikey:" + i.name }

// keyring looks keys up, with a memory for those that are good. Unknown keys are not remembered: an attacker could
// fill the memory with them.
type keyring struct {
	store   *store.Store
	guesses *guesses

	mu      sync.RWMutex
	known   map[[sha256.Size]byte]knownKey
	lookups singleflight.Group
}

type knownKey struct {
	*identity           // shared by all requests with the key
	askedAt   time.Time // before the database was asked, so that the age is never too small
	refreshed *atomic.Bool
}

var errUnknownKey = problem(http.StatusUnauthorized, "unauthorized", "The key is unknown or revoked.")

// identify is who has the key with this hash. errUnknownKey when nobody has; a 429 when the address behind remote has guessed too often,
// but not for a key that was good the last time; any other error means that the database could not be asked.
func (k *keyring) identify(ctx context.Context, hash [sha256.Size]byte, remote string) (*identity, error) {
	k.mu.RLock()
	known, ok := k.known[hash]
	k.mu.RUnlock()
	if age := time.Since(known.askedAt); ok && age < keyAge {
		if age >= keyRefresh && known.refreshed.CompareAndSwap(false, true) {
			k.refresh(ctx, hash)
		}
		return known.identity, nil
	}
	return k.lookUp(ctx, hash, remote, ok)
}

// lookUp asks the database. known: the key was good the last time.
func (k *keyring) lookUp(ctx context.Context, hash [sha256.Size]byte, remote string, known bool) (*identity, error) {
	// One look-up for all who wait; it does not end with the request that happened to be first.
	found := k.lookups.DoChan(string(hash[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keyDeadline)
		defer cancel()
		if known {
			return k.ask(ctx, hash)
		}
		address := remoteAddress(remote)
		if !k.guesses.begin(address) {
			return nil, tooManyGuesses()
		}
		who, err := k.ask(ctx, hash)
		k.guesses.end(address, errors.Is(err, errUnknownKey))
		return who, err
	})
	select {
	case result := <-found:
		if result.Err != nil {
			return nil, result.Err
		}
		who, _ := result.Val.(*identity)
		return who, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// refresh looks a key up while it is still taken from memory. It waits for nothing.
func (k *keyring) refresh(ctx context.Context, hash [sha256.Size]byte) {
	k.lookups.DoChan(string(hash[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keyDeadline)
		defer cancel()
		return k.ask(ctx, hash)
	})
}

func (k *keyring) ask(ctx context.Context, hash [sha256.Size]byte) (*identity, error) {
	askedAt := time.Now()
	key, err := k.store.APIKeyByHash(ctx, hash[:])
	unknown := errors.Is(err, store.ErrNotFound) || (err == nil && subtle.ConstantTimeCompare(key.Hash, hash[:]) != 1)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case unknown:
		delete(k.known, hash)
		return nil, errUnknownKey
	case err != nil:
		return nil, err
	}
	who := &identity{role: roleNamed(key.Role), id: key.ID, name: key.Name}
	k.known[hash] = knownKey{identity: who, askedAt: askedAt, refreshed: new(atomic.Bool)}
	return who, nil
}

// callerKey is what a request's context keeps its caller under.
type callerKey struct{}

// who is the caller of a route that asked for a key; nobody for any other.
func who(c echo.Context) identity {
	if caller, ok := c.Request().Context().Value(callerKey{}).(*identity); ok {
		return *caller
	}
	return identity{}
}

// requires lets only keys of the role or a stronger one pass.
func (k *keyring) requires(least role) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			key, ok := bearer(c.Request().Header)
			if !ok {
				return problem(http.StatusUnauthorized, "unauthorized", "Send a key: `Authorization: Bearer tk_…`.")
			}
			caller, err := k.identify(c.Request().Context(), secret.HashAPIKey(key), c.Request().RemoteAddr)
			if err != nil {
				return err
			}
			calledBy(c, caller)
			if caller.role < least {
				return problem(http.StatusForbidden, "forbidden", "This needs a key of role "+roleNames[least]+" or above; this key has "+roleNames[caller.role]+".")
			}
			return next(c)
		}
	}
}

// bearer takes the key out of the one Authorization header.
func bearer(h http.Header) (string, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, key, _ := strings.Cut(values[0], " ")
	key = strings.TrimSpace(key)
	return key, strings.EqualFold(scheme, "Bearer") && strings.HasPrefix(key, secret.APIKeyScheme) && len(key) <= maxID
}
