package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
)

// While the database is away nobody goes on, so an event that makes the program itself fail must not look like an outage.
func TestOnlyAnOutageIsUnreachable(t *testing.T) {
	t.Parallel()
	_, notJSON := json.Marshal(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC))
	require.Error(t, notJSON)
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"no connection":       {&net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		"broken connection":   {io.ErrUnexpectedEOF, true},
		"time-out":            {context.DeadlineExceeded, true},
		"stopped":             {context.Canceled, true},
		"shutdown":            {&pgconn.PgError{Code: "57P01"}, true},
		"too many":            {&pgconn.PgError{Code: "53300"}, true},
		"slow statement":      {&pgconn.PgError{Code: "57014"}, false},
		"constraint":          {&pgconn.PgError{Code: "23514"}, false},
		"an answer of no use": {&pgconn.PgError{}, false},
		"changed meanwhile":   {store.ErrConflict, false},
		"rolled back":         {pgx.ErrTxCommitRollback, false},
		"a panic":             {errors.New("applying panicked: index out of range"), false},
		"cannot be written":   {notJSON, false},
	} {
		require.Equal(t, c.want, unreachable(fmt.Errorf("applying: %w", c.err)), name)
	}
}
