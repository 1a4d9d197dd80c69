package simulator

import "net/http"

// controlMoney are the endpoints under /_sim/ by which money moves.
func (s *Simulator) controlMoney(mux *http.ServeMux) {
	mux.HandleFunc("POST /_sim/checkout-sessions/{id}/pay", func(w http.ResponseWriter, r *http.Request) {
		var in PayOptions
		if read(w, r, &in) {
			p, err := s.PayCheckout(r.PathValue("id"), in)
			done(w, p, err)
		}
	})
	mux.HandleFunc("POST /_sim/checkout-sessions/{id}/extra-payment", func(w http.ResponseWriter, r *http.Request) {
		var in PayOptions
		if read(w, r, &in) {
			p, err := s.ExtraPayment(r.PathValue("id"), in)
			done(w, p, err)
		}
	})
	mux.HandleFunc("POST /_sim/payment-intents/{id}/finish", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Succeeds    bool `json:"succeeds"`
			DropWebhook bool `json:"drop_webhook"`
		}
		if read(w, r, &in) {
			p, err := s.FinishPayment(r.PathValue("id"), in.Succeeds, in.DropWebhook)
			done(w, p, err)
		}
	})
	mux.HandleFunc("POST /_sim/payments/{id}/refund", func(w http.ResponseWriter, r *http.Request) {
		var in RefundOptions
		if read(w, r, &in) {
			made, err := s.RefundPayment(r.PathValue("id"), in)
			done(w, made, err)
		}
	})
	mux.HandleFunc("POST /_sim/refunds/{id}/finish", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Succeeds bool `json:"succeeds"`
		}
		if read(w, r, &in) {
			ended, err := s.FinishRefund(r.PathValue("id"), in.Succeeds)
			done(w, ended, err)
		}
	})
	mux.HandleFunc("POST /_sim/payment-events", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Tell bool `json:"tell"`
		}
		if read(w, r, &in) {
			s.TellPayments(in.Tell)
			writeJSON(w, found(map[string]any{}))
		}
	})
	mux.HandleFunc("POST /_sim/refunds", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Hold bool `json:"hold"`
		}
		if read(w, r, &in) {
			s.HoldRefunds(in.Hold)
			writeJSON(w, found(map[string]any{}))
		}
	})
	mux.HandleFunc("POST /_sim/payments/{id}/dispute", func(w http.ResponseWriter, r *http.Request) {
		var in DisputeOptions
		if read(w, r, &in) {
			opened, err := s.OpenDispute(r.PathValue("id"), in)
			done(w, opened, err)
		}
	})
	mux.HandleFunc("POST /_sim/disputes/{id}/close", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Won         bool `json:"won"`
			DropWebhook bool `json:"drop_webhook"`
		}
		if read(w, r, &in) {
			closed, err := s.CloseDispute(r.PathValue("id"), in.Won, in.DropWebhook)
			done(w, closed, err)
		}
	})
}

// done answers with what was made, or says why it could not be.
func done(w http.ResponseWriter, made written, err error) {
	if err != nil {
		badRequest(w, err.Error())
		return
	}
	writeJSON(w, found(made.write(Shape2023)))
}
