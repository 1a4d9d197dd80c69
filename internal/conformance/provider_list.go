package conformance

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	usualPage = 10
	mostPage  = 100
)

// list answers with one page of a list, the newest first.
func (p *Provider) list(w http.ResponseWriter, r *http.Request, path, kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.filtered(kind, r.Form)
	if after := r.Form.Get("starting_after"); after != "" {
		place := slices.IndexFunc(found, func(o object) bool { return o["id"] == after })
		if place < 0 {
			refuse(w, http.StatusBadRequest, "resource_missing", "No such "+kind+": '"+after+"'")
			return
		}
		found = found[place+1:]
	}
	size := usualPage
	if n, ok := number(r.Form.Get("limit")); ok {
		size = int(min(max(n, 1), mostPage))
	}
	more := len(found) > size
	found = slices.Clone(found[:min(size, len(found))])
	for i := range found {
		found[i] = maps.Clone(found[i])
		for _, path := range values(r.Form, "expand") {
			if path, ok := strings.CutPrefix(path, "data."); ok {
				found[i] = p.expand(found[i], strings.Split(path, "."))
			}
		}
	}
	answer(w, http.StatusOK, page(found, "/v1/"+path, more))
}

func page(data []object, path string, more bool) object {
	if data == nil {
		data = []object{}
	}
	return object{"object": "list", "data": data, "has_more": more, "url": path}
}

// filtered are the objects of a kind that the filters let through, the newest first.
func (p *Provider) filtered(kind string, form url.Values) []object {
	var found []object
	for _, id := range p.ids[kind] {
		if o := p.held[id]; p.passes(o, kind, form) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b object) int {
		return cmp.Or(cmp.Compare(created(b), created(a)), cmp.Compare(b["id"].(string), a["id"].(string)))
	})
	return found
}

func created(o object) int64 {
	at, _ := o["created"].(int64)
	return at
}

// passes: a filter with the name of a field is compared with it, as most of Stripe's are.
func (p *Provider) passes(o object, kind string, form url.Values) bool {
	types := values(form, "types")
	for name := range form {
		value := form.Get(name)
		switch name {
		case "limit", "starting_after":
		case "status":
			if value != "all" && o["status"] != value {
				return false
			}
		case "delivery_success":
			if (value == "true") == p.lost[o["id"].(string)] {
				return false
			}
		case "created[gte]", "created[gt]", "created[lte]", "created[lt]":
			if at, ok := number(value); ok && !within(created(o), name, at) {
				return false
			}
		default:
			if held, ok := o[name].(string); ok && held != value {
				return false
			}
		}
	}
	if kind == "subscription" && !form.Has("status") && o["status"] == "canceled" {
		return false
	}
	return len(types) == 0 || slices.Contains(types, o["type"].(string))
}

func within(at int64, name string, bound int64) bool {
	switch name {
	case "created[gte]":
		return at >= bound
	case "created[gt]":
		return at > bound
	case "created[lte]":
		return at <= bound
	default:
		return at < bound
	}
}

// values are those of a list in a form: name[]=…, or name[0]=….
func values(form url.Values, name string) []string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(form)) {
		if strings.HasPrefix(key, name+"[") {
			list = append(list, form[key]...)
		}
	}
	return list
}

func number(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}
