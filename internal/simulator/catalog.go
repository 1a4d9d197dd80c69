package simulator

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
)

func (s *stripe) createProduct(f form, _ string) answer {
	if f.text("name") == "" {
		return lacks("name")
	}
	id := orText(f.text("id"), NewID("prod"))
	if _, taken := s.products.get(id); taken {
		return refusal(http.StatusBadRequest, "resource_already_exists", "id", "Product already exists.")
	}
	s.addProduct(id, f.text("name"), f.metadata(nil))
	return s.product(nil, id)
}

func (s *stripe) addProduct(id, name string, metadata map[string]string) {
	s.products.put(id, map[string]any{
		"id": id, "object": "product", "active": true, "created": seconds(s.now()), "livemode": false, "name": name, "metadata": metadata, "type": "service",
	})
}

func (s *stripe) product(_ form, id string) answer {
	p, ok := s.products.get(id)
	if !ok {
		return missing("product", id)
	}
	return found(maps.Clone(p))
}

func (s *stripe) listProducts(f form, _ string) answer {
	return list(f, "/v1/products", &s.products, func(map[string]any) bool { return true }, func(p map[string]any) any { return maps.Clone(p) })
}

// createPrice makes a price of a product that there is, or of one that is made with it. Without recurring it is paid once.
func (s *stripe) createPrice(f form, _ string) answer {
	p := priceFixture{ID: NewID("price"), Product: f.text("product"), Interval: f.text("recurring[interval]"), IntervalCount: 1, Created: s.now()}
	name := f.text("product_data[name]")
	if _, ok := s.products.get(p.Product); !ok && name == "" {
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
	if p.Product == "" {
		p.Product = NewID("prod")
		s.addProduct(p.Product, name, map[string]string{})
	}
	s.prices.put(p.ID, p)
	return found(p.object())
}

func (s *stripe) price(_ form, id string) answer {
	p, ok := s.prices.get(id)
	if !ok {
		return missing("price", id)
	}
	return found(p.object())
}

func (s *stripe) listPrices(f form, _ string) answer {
	return list(f, "/v1/prices", &s.prices, func(p priceFixture) bool {
		return (!f.has("product") || p.Product == f.text("product")) && (!f.has("currency") || p.Currency == f.text("currency")) && f.created(p.Created)
	}, func(p priceFixture) any { return p.object() })
}
