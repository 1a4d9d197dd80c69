package intake

import "termkeeper/internal/payment"

// Wanted reports whether an event would be applied, and not only kept: whoever goes through the provider's own list stores no other.
func (in *Intake) Wanted(e payment.Event) bool { return in.ignored(e) == "" }
