package simulator

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

type priceFixture struct {
	ID, Product, Currency string
	UnitAmount            int64
	Interval              string // day, week, month or year; "" for a price that is paid once
	IntervalCount         int
	Created               time.Time
}

func (p priceFixture) object() map[string]any {
	object := map[string]any{
		"id": p.ID, "object": "price", "active": true, "billing_scheme": "per_unit", "created": seconds(p.Created),
		"currency": p.Currency, "livemode": false, "lookup_key": nil, "metadata": map[string]string{}, "nickname": nil,
		"product": p.Product, "recurring": nil, "tax_behavior": "unspecified", "type": "one_time", "unit_amount": p.UnitAmount,
	}
	if p.Interval != "" {
		object["recurring"] = map[string]any{"interval": p.Interval, "interval_count": p.IntervalCount, "usage_type": "licensed"}
		object["type"] = "recurring"
	}
	return object
}

var currencyCode = regexp.MustCompile(`^[a-z]{3}$`)

// cost reads what a price costs from the parameters of these names.
func (p *priceFixture) cost(f form, currency, amount string) (refused answer, bad bool) {
	if f.text(currency) == "" {
		return lacks(currency), true
	}
	if p.Currency = strings.ToLower(f.text(currency)); !currencyCode.MatchString(p.Currency) {
		return refusal(http.StatusBadRequest, "", currency, "Invalid currency: "+f.text(currency)+"."), true
	}
	if f.text(amount) == "" {
		return lacks(amount), true
	}
	var err error
	if p.UnitAmount, err = strconv.ParseInt(f.text(amount), 10, 64); err != nil || p.UnitAmount < 0 {
		return refusal(http.StatusBadRequest, "parameter_invalid_integer", amount, "Invalid integer: "+amount), true
	}
	return answer{}, false
}

// recurring is the price that a request gives to the item of a subscription.
func (s *stripe) recurring(f form) (price priceFixture, refused answer, bad bool) {
	const param = "items[0][price]"
	price, ok := s.prices.get(f.text(param))
	switch {
	case !ok:
		return priceFixture{}, noSuch("price", f.text(param), param), true
	case price.Interval == "":
		return priceFixture{}, refusal(http.StatusBadRequest, "", param,
			"The price specified is set to `type=one_time` but this field only accepts prices with `type=recurring`."), true
	}
	return price, answer{}, false
}

// plan is the older name of a price; Stripe still writes both.
func (p priceFixture) plan() map[string]any {
	return map[string]any{
		"id": p.ID, "object": "plan", "active": true, "amount": p.UnitAmount, "billing_scheme": "per_unit",
		"created": seconds(p.Created), "currency": p.Currency, "interval": p.Interval, "interval_count": p.IntervalCount,
		"livemode": false, "metadata": map[string]string{}, "product": p.Product, "usage_type": "licensed",
	}
}

// after returns the end of the period that begins at start. Months keep the day of the anchor and shorten it only where
// a month has no such day: 31 January, 28 February, 31 March.
func (p priceFixture) after(start, anchor time.Time) time.Time {
	switch p.Interval {
	case "day":
		return start.AddDate(0, 0, p.IntervalCount)
	case "week":
		return start.AddDate(0, 0, 7*p.IntervalCount)
	}
	months := p.IntervalCount
	if p.Interval == "year" {
		months *= 12
	}
	first := time.Date(start.Year(), start.Month()+time.Month(months), 1, anchor.Hour(), anchor.Minute(), anchor.Second(), 0, time.UTC)
	day := min(anchor.Day(), first.AddDate(0, 1, -1).Day())
	return first.AddDate(0, 0, day-1)
}
