package subscription

import "time"

// disputeMoves is how far a dispute has come. A bank that only asked may go on to take the money.
// Source: https://docs.stripe.com/api/disputes/object, status.
var disputeMoves = map[string]int{
	"warning_needs_response": 1, "warning_under_review": 2, "warning_closed": 3, "needs_response": 4, "under_review": 5,
	"prevented": 6, "won": 6, "lost": 6,
}

// Dispute is what is known of a payment that a bank takes back.
type Dispute struct {
	Status   string // the provider's own word
	ClosedAt time.Time
}

// DisputeWon reports whether nothing is taken back any more: it was won, or the bank only asked.
func DisputeWon(status string) bool {
	return status == "won" || status == "warning_closed" || status == "prevented"
}

// DisputeClosed reports whether the dispute is decided.
func DisputeClosed(status string) bool { return status == DisputeLost || DisputeWon(status) }

// DisputeLost is the provider's word for money that is gone.
const DisputeLost = "lost"

// GoesOn reports whether news of a dispute, said at an instant, tells more than is known. Events of a dispute may arrive in
// any order. Of two decisions the later one counts, and of the same second that it is lost.
func (d Dispute) GoesOn(status string, at time.Time) bool {
	if from, to := disputeMoves[d.Status], disputeMoves[status]; from != to {
		return to > from
	}
	switch {
	case status == d.Status || !DisputeClosed(status):
		return false
	case at.Equal(d.ClosedAt):
		return status == DisputeLost
	}
	return at.After(d.ClosedAt)
}
