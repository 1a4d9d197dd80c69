package simulator

import (
	"net/http"
	"strings"
)

// maxExpand is how deep Stripe expands.
const maxExpand = 4

// expanded writes objects in place of the ids that the paths name, such as latest_invoice.payment_intent or, in a list,
// data.customer. A path that names nothing is refused, as Stripe does.
func (s *stripe) expanded(said answer, paths []string) answer {
	if said.status != http.StatusOK {
		return said
	}
	for _, path := range paths {
		keys := strings.Split(path, ".")
		levels := len(keys)
		if object, ok := said.body.(map[string]any); ok && object["object"] == "list" {
			levels--
		}
		if levels > maxExpand {
			return refusal(http.StatusBadRequest, "", "expand", "You cannot expand more than 4 levels of a property. Property: "+path)
		}
		if _, ok := s.expand(said.body, keys); !ok {
			return refusal(http.StatusBadRequest, "", "expand", "This property cannot be expanded ("+path+").")
		}
	}
	return said
}

func (s *stripe) expand(value any, path []string) (any, bool) {
	switch v := value.(type) {
	case nil:
		return nil, true
	case string:
		object, ok := s.named(v)
		if !ok {
			return v, ok
		}
		if len(path) == 0 {
			return object, true
		}
		return s.expand(object, path)
	case []any:
		for i := range v {
			one, ok := s.expand(v[i], path)
			if !ok {
				return v, false
			}
			v[i] = one
		}
		return v, true
	case map[string]any:
		if len(path) == 0 {
			return v, true
		}
		inside, ok := v[path[0]]
		if !ok {
			if inside, ok = s.included(v, path[0]); !ok {
				return v, false
			}
		}
		v[path[0]], ok = s.expand(inside, path[1:])
		return v, ok
	}
	return value, false
}

// named is the object of an id, whose prefix tells its kind; false when it has none that can be expanded. An object that is
// not there stays an id.
func (s *stripe) named(id string) (any, bool) {
	prefix, _, _ := strings.Cut(id, "_")
	fetch, ok := map[string]func(form, string) answer{
		"cus": s.customer, "prod": s.product, "price": s.price, "sub": s.subscription, "in": s.invoice, "pi": s.paymentIntent, "ch": s.charge,
		"re": s.refund, "dp": s.dispute,
	}[prefix]
	if !ok {
		return id, false
	}
	if said := fetch(nil, id); said.status == http.StatusOK {
		return said.body, true
	}
	return id, true
}

// included is a property that an object has only when it is asked for.
func (s *stripe) included(object map[string]any, key string) (any, bool) {
	id, _ := object["id"].(string)
	if object["object"] == "checkout.session" && key == "line_items" {
		c, ok := s.checkouts.get(id)
		if !ok {
			return nil, false
		}
		return c.lineItems(), true
	}
	if object["object"] == "charge" && key == "refunds" {
		return s.listRefunds(form{"charge": {id}}, "").body, true
	}
	return nil, false
}
