package store

import (
	"context"
	"fmt"
	"time"
)

// outboxBacklog reads by the partial index of the pending facts only. Those that come true later are none yet.
const outboxBacklog = `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8 FROM outbox WHERE status = 'pending' AND created_at <= clock_timestamp()`

// OutboxBacklog is how many facts were not dispatched yet and the age of the oldest, 0 when there is none.
func (s *Store) OutboxBacklog(ctx context.Context) (pending int64, oldest time.Duration, err error) {
	var age float64
	if err := s.pool.QueryRow(ctx, outboxBacklog).Scan(&pending, &age); err != nil {
		return 0, 0, fmt.Errorf("reading the backlog of the outbox: %w", err)
	}
	return pending, seconds(age), nil
}
