package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
)

// maxURL is the longest URL of an endpoint, in bytes.
const maxURL = 2048

// CheckURL says what is wrong with the URL of an endpoint, in words for whoever gave it. It is a courtesy: where a name
// leads is only known when it is called, and only then decided, by the address that is really dialed. allowPrivate takes http and
// private addresses as well.
func CheckURL(raw string, allowPrivate bool) error {
	u, err := url.Parse(raw)
	switch {
	case len(raw) > maxURL:
		return fmt.Errorf("must have at most %d characters", maxURL)
	case err != nil || u.Hostname() == "" || u.Opaque != "":
		return errors.New("must be a URL like https://example.com/hooks")
	case u.Scheme != "https" && (u.Scheme != "http" || !allowPrivate):
		return errors.New("must begin with https://")
	case u.User != nil:
		return errors.New("must not hold a user or a password; calls are signed")
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return errors.New("must not have a fragment; it would not be sent")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return errors.New("must have a port from 1 to 65535, or none")
		}
	}
	if address, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := checkAddress(address, allowPrivate); err != nil {
			return errors.New("must lead to a public address")
		}
	}
	return nil
}

// ErrTarget says that a name leads to an address that must not be called.
var ErrTarget = errors.New("the address is not a public one")

// guard refuses a connection by the address that it is about to be made to. It runs after the name was looked up, for each
// address that is tried, so a name that leads elsewhere at the second look-up gains nothing.
func guard(allowPrivate bool) func(network, address string, _ syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		if network != "tcp4" && network != "tcp6" {
			return fmt.Errorf("%w: a connection by %s", ErrTarget, network)
		}
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: it cannot be read", ErrTarget)
		}
		return checkAddress(at.Addr(), allowPrivate)
	}
}

// checkAddress: ErrTarget for what is not a public unicast address. allowPrivate lets loopback and private networks through,
// and nothing else: link-local addresses are where clouds keep their credentials.
func checkAddress(address netip.Addr, allowPrivate bool) error {
	if allowPrivate && private(embedded(address)) {
		return nil
	}
	if !public(embedded(address)) {
		return fmt.Errorf("%w: %s", ErrTarget, address)
	}
	return nil
}

// embedded is the IPv4 address that an IPv6 address stands for: mapped ones (RFC 4291), and those that a NAT64 gateway
// turns into it (RFC 6052).
func embedded(address netip.Addr) netip.Addr {
	address = address.Unmap()
	if address.Is6() && address.Zone() == "" && netip.MustParsePrefix("64:ff9b::/96").Contains(address) {
		raw := address.As16()
		return netip.AddrFrom4([4]byte(raw[12:]))
	}
	return address
}

func private(address netip.Addr) bool {
	return in(address, "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "::1/128", "fc00::/7")
}

// public goes by the special-purpose registries of IANA (RFC 6890): of IPv4 all that is not in them, of IPv6 only what is
// given out as global unicast, less the parts of it that are not.
func public(address netip.Addr) bool {
	if address.Zone() != "" || !address.IsValid() {
		return false
	}
	if address.Is4() {
		return !in(
			address, "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
			"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
			"168.63.129.16/32", // answers only inside Azure, with what belongs to the machine
		)
	}
	// Protocol assignments with Teredo, documentation, 6to4, documentation.
	return in(address, "2000::/3") && !in(address, "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
}

func in(address netip.Addr, prefixes ...string) bool {
	for _, p := range prefixes {
		if netip.MustParsePrefix(p).Contains(address) {
			return true
		}
	}
	return false
}
