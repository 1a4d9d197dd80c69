package simulator

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
)

// createProduct and what follows: products and prices, which are never changed.
func (s *stripe) createProduct(f form, _ string) answer {
	if f.text("name") == "" {
		return lacks("name")
	}
	id := f.text("id")
	if id == "" {
		id = NewID("prod")
	}
	s.products[id] = map[string]any{
		"id": id, "object": "product", "active": true, "created": seconds(s.now()), "livemode": false, "name": f.text("name"),
		"metadata": f.metadata(nil), "type": "service",
	}
	return found(maps.Clone(s.products[id]))
}

func (s *stripe) product(_ form, id string) answer {
	p, ok := s.products[id]
	if !ok {
		return missing("product", id)
	}
	return found(maps.Clone(p))
}

func (s *stripe) createPrice(f form, _ string) answer {
	p := priceFixture{ID: NewID("price"), Product: f.text("product"), Interval: f.text("recurring[interval]"), IntervalCount: 1, Created: s.now()}
	if _, ok := s.products[p.Product]; !ok {
		return noSuch("product", p.Product, "product")
	}
	if f.under("recurring") && !slices.Contains([]string{"day", "week", "month", "year"}, p.Interval) {
		return refusal(http.StatusBadRequest, "", "recurring[interval]", "Invalid recurring[interval]: must be one of day, month, week, or year")
	}
	if refused, bad := p.cost(f, "currency", "unit_amount"); bad {
		return refused
	}
	var err error
	if f.has("recurring[interval_count]") {
		if p.IntervalCount, err = strconv.Atoi(f.text("recurring[interval_count]")); err != nil || p.IntervalCount < 1 {
			return refusal(http.StatusBadRequest, "parameter_invalid_integer", "recurring[interval_count]", "Invalid integer: recurring[interval_count]")
		}
	}
	s.prices[p.ID] = p
	return found(p.object())
}

func (s *stripe) price(_ form, id string) answer {
	p, ok := s.prices[id]
	if !ok {
		return missing("price", id)
	}
	return found(p.object())
}
