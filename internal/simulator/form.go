package simulator

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// form is a request of the REST API: query or body, with keys such as items[0][price] and metadata[user_id].
type form url.Values

func (f form) has(key string) bool    { return url.Values(f).Has(key) }
func (f form) text(key string) string { return url.Values(f).Get(key) }

// list returns the values of key[], key[0], key[1], …
func (f form) list(key string) []string {
	var values []string
	for _, name := range slices.Sorted(keysOf(f)) {
		if strings.HasPrefix(name, key+"[") {
			values = append(values, f[name]...)
		}
	}
	return values
}

func keysOf(f form) func(func(string) bool) {
	return func(yield func(string) bool) {
		for key := range f {
			if !yield(key) {
				return
			}
		}
	}
}

// under tells whether there is anything of the name key[…].
func (f form) under(key string) bool {
	for name := range f {
		if strings.HasPrefix(name, key+"[") {
			return true
		}
	}
	return false
}

// metadata returns the metadata after the request: a key given empty is removed.
func (f form) metadata(before map[string]string) map[string]string {
	return f.metadataIn("metadata", before)
}

// metadataIn is metadata of another name, such as payment_intent_data[metadata].
func (f form) metadataIn(name string, before map[string]string) map[string]string {
	under := name + "["
	after := map[string]string{}
	for key, value := range before {
		after[key] = value
	}
	for name := range f {
		key, ok := strings.CutPrefix(name, under)
		if !ok {
			continue
		}
		key = strings.TrimSuffix(key, "]")
		if f.text(name) == "" {
			delete(after, key)
		} else {
			after[key] = f.text(name)
		}
	}
	return after
}

// instant reads seconds since 1970; ok is false when what is there is no instant.
func (f form) instant(key string) (at time.Time, ok bool) {
	if f.text(key) == "" {
		return time.Time{}, true
	}
	n, err := strconv.ParseInt(f.text(key), 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}, false
	}
	return time.Unix(n, 0).UTC(), true
}

// created applies created[gt], created[gte], created[lt], created[lte].
func (f form) created(at time.Time) bool {
	for suffix, fits := range map[string]func(int) bool{
		"[gt]": func(c int) bool { return c > 0 }, "[gte]": func(c int) bool { return c >= 0 },
		"[lt]": func(c int) bool { return c < 0 }, "[lte]": func(c int) bool { return c <= 0 },
	} {
		bound, ok := f.instant("created" + suffix)
		if ok && !bound.IsZero() && !fits(at.Compare(bound)) {
			return false
		}
	}
	return true
}
