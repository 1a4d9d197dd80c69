package payment

import "encoding/json"

// Checkout is what a checkout session tells about the subscription that it made.
type Checkout struct {
	ID             string
	SubscriptionID string // "" when it sold no subscription
	CustomerID     string
	UserID         string // client_reference_id, else metadata.user_id; "" when it names nobody
	Email, Name    string // of the customer; "" where no mail could be sent to it
}

// ReadCheckout reads a checkout session of any API version we know.
// The error is ErrMalformed: not a JSON object, an object of another kind, or no id.
func ReadCheckout(raw json.RawMessage) (Checkout, error) {
	object, id, err := identified(raw, "checkout.session")
	if err != nil {
		return Checkout{}, err
	}
	return Checkout{
		ID:             id,
		SubscriptionID: object.at("subscription").firstText(idPlaces),
		CustomerID:     object.at("customer").firstText(idPlaces),
		UserID:         object.firstText(checkoutUserPlaces),
		Email:          address(object.firstText(checkoutEmailPlaces)),
		Name:           object.at("customer_details", "name").text(),
	}, nil
}
