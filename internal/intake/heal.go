package intake

import "go.uber.org/zap"

// Heal says that something was learned that quarantined events may wait for: a link, a price. They are applied soon, in
// this process; what it cannot do is left to the job webhook-apply. It returns at once.
func (in *Intake) Heal() {
	select {
	case in.mapped <- struct{}{}:
	default: // somebody said it already, and it was not heard yet
	}
}

func (in *Intake) heal() {
	for {
		select {
		case <-in.stop:
			return
		case <-in.mapped:
		}
		for more := true; more; {
			t, err := in.ApplyDue(in.working, groupSize)
			if err != nil {
				in.log.Warn("quarantined events were not looked at", zap.Error(err))
			}
			select {
			case <-in.stop:
				return
			default:
				more = err == nil && t.More && t.Scanned > 0
			}
		}
	}
}
