package store

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// Unavailable reports whether the error says that the database could not do its work now, as opposed to what it
// answered: no connection, a time-out, no free connection, a shutdown. The same call may succeed later.
func Unavailable(err error) bool {
	var answered *pgconn.PgError
	if errors.As(err, &answered) && len(answered.Code) == 5 {
		switch answered.Code[:2] {
		case "08", "53", "57", "58": // connection, resources, operator intervention and time-outs, system error
			return true
		}
		return answered.Code == codeLockNotAvailable || answered.Code == codeReadOnly || again(err)
	}
	var connecting *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connecting) || errors.As(err, &network) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || // the connection broke while the answer was awaited
		errors.Is(err, context.DeadlineExceeded) || pgconn.SafeToRetry(err) || pgconn.Timeout(err)
}

const (
	codeLockNotAvailable = "55P03"
	codeReadOnly         = "25006" // a standby after a failover
)

// Busy reports whether the error says that somebody else held a row for too long.
func Busy(err error) bool { return sqlState(err) == codeLockNotAvailable }
