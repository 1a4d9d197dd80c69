package payment

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// place is a path of keys into a payload; "*" goes into every element of a list. The empty place is the payload itself.
type place []string

// Where Stripe puts what we need, the newest API version first: the first place that knows something counts.
// Up to acacia a subscription had one period; from basil (2025-03-31) on each item has its own.
var (
	periodPlaces = []place{{"items", "data", "*"}, {}}
	itemPlaces   = []place{{"items", "data", "*"}, {}} // a subscription of a single old-style plan names it at the top, too
	pricePlaces  = []place{{"price", "id"}, {"price"}, {"plan", "id"}, {"plan"}}
	idPlaces     = []place{{"id"}, {}} // an expanded object, or its bare id
	// An invoice: from basil on its parent names the subscription, and so does each line.
	invoiceSubscriptionPlaces = []place{
		{"parent", "subscription_details", "subscription", "id"},
		{"parent", "subscription_details", "subscription"},
		{"subscription", "id"},
		{"subscription"},
		{"lines", "data", "*", "parent", "subscription_item_details", "subscription"},
		{"lines", "data", "*", "subscription"},
	}
	prorationPlaces = []place{{"parent", "subscription_item_details", "proration"}, {"parent", "invoice_item_details", "proration"}, {"proration"}}
	// A checkout session: what the customer typed in counts before what the session was made with.
	checkoutUserPlaces  = []place{{"client_reference_id"}, {"metadata", "user_id"}}
	checkoutEmailPlaces = []place{{"customer_details", "email"}, {"customer_email"}}
)

// node is one decoded JSON value. Reading a wrong type from it gives the zero value, which means unknown.
type node struct{ value any }

// decode reads a JSON object. Numbers stay text, so that none is too big.
func decode(raw json.RawMessage) (node, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil || object == nil {
		return node{}, fmt.Errorf("%w: not a JSON object", ErrMalformed)
	}
	return node{object}, nil
}

// all returns the values at a place, in their order.
func (n node) all(p place) []node {
	found := []node{n}
	for _, key := range p {
		var next []node
		for _, holder := range found {
			next = append(next, holder.under(key)...)
		}
		found = next
	}
	return found
}

// under returns what a key leads to: for "*" every element of a list.
func (n node) under(key string) []node {
	if key == "*" {
		list, _ := n.value.([]any)
		elements := make([]node, len(list))
		for i, element := range list {
			elements[i] = node{element}
		}
		return elements
	}
	object, _ := n.value.(map[string]any)
	if value, ok := object[key]; ok && value != nil {
		return []node{{value}}
	}
	return nil
}

// at returns the value under the keys, or an empty node.
func (n node) at(keys ...string) node {
	for _, found := range n.all(keys) {
		return found
	}
	return node{}
}

// firstText returns the first usable string at any of the places.
func (n node) firstText(places []place) string {
	for _, p := range places {
		for _, found := range n.all(p) {
			if s := found.text(); s != "" {
				return s
			}
		}
	}
	return ""
}

func (n node) text() string {
	s, _ := n.value.(string)
	return storable(s)
}

func (n node) flag() bool {
	b, _ := n.value.(bool)
	return b
}

func (n node) instant() time.Time {
	number, _ := n.value.(json.Number)
	return second(string(number))
}

// count returns a whole number that is not negative and fits any int, else 0.
func (n node) count() int {
	number, _ := n.value.(json.Number)
	i, ok := whole(string(number))
	if !ok || i < 0 || i > 1<<31-1 {
		return 0
	}
	return int(i)
}

func (n node) isObject() bool {
	_, ok := n.value.(map[string]any)
	return ok
}

// firstFlag returns whether the first of the places that holds anything holds true.
func (n node) firstFlag(places []place) bool {
	for _, p := range places {
		for _, found := range n.all(p) {
			return found.flag()
		}
	}
	return false
}

// isZero reports whether the number under the key is there and is 0.
func (n node) isZero(key string) bool {
	number, _ := n.at(key).value.(json.Number)
	i, ok := whole(string(number))
	return ok && i == 0
}
