package simulator

import (
	"net/http"
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

// metadata returns the metadata after the request: a key given empty is removed.
func (f form) metadata(before map[string]string) map[string]string {
	after := map[string]string{}
	for key, value := range before {
		after[key] = value
	}
	for name := range f {
		key, ok := strings.CutPrefix(name, "metadata[")
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

// within applies key[gt], key[gte], key[lt], key[lte].
func (f form) within(key string, at time.Time) bool {
	for suffix, fits := range map[string]func(int) bool{
		"[gt]": func(c int) bool { return c > 0 }, "[gte]": func(c int) bool { return c >= 0 },
		"[lt]": func(c int) bool { return c < 0 }, "[lte]": func(c int) bool { return c <= 0 },
	} {
		bound, ok := f.instant(key + suffix)
		if ok && !bound.IsZero() && !fits(at.Compare(bound)) {
			return false
		}
	}
	return true
}

// row is one element of a list, written only when it is on the page.
type row struct {
	id     string
	object func() any
}

// page cuts a list, newest first, by limit, starting_after and ending_before.
func page(f form, path string, rows []row) answer {
	limit := 10
	if f.has("limit") {
		n, err := strconv.Atoi(f.text("limit"))
		if err != nil || n < 1 || n > 100 {
			return refusal(http.StatusBadRequest, "", "limit", "Invalid limit: must be between 1 and 100")
		}
		limit = n
	}
	index := func(id string) int { return slices.IndexFunc(rows, func(r row) bool { return r.id == id }) }
	more := false
	switch after, before := f.text("starting_after"), f.text("ending_before"); {
	case after != "":
		i := index(after)
		if i < 0 {
			return noSuch("object", after, "starting_after")
		}
		rows = rows[i+1:]
	case before != "":
		i := index(before)
		if i < 0 {
			return noSuch("object", before, "ending_before")
		}
		rows = rows[:i]
		if more = len(rows) > limit; more {
			rows = rows[len(rows)-limit:]
		}
	}
	if len(rows) > limit {
		rows, more = rows[:limit], true
	}
	data := make([]any, 0, len(rows))
	for _, r := range rows {
		data = append(data, r.object())
	}
	return found(map[string]any{"object": "list", "data": data, "has_more": more, "url": path})
}
