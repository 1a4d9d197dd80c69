package store

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The errors that callers tell apart. Everything else is the database's trouble.
var (
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("it was changed meanwhile")
	ErrExists   = errors.New("it exists already")
	ErrNoPlan   = errors.New("there is no such plan")
)

// SQLSTATE codes that are handled by name. Source: PostgreSQL 15, appendix A.
const (
	codeForeignKeyViolation  = "23503"
	codeUniqueViolation      = "23505"
	codeSerializationFailure = "40001"
	codeDeadlockDetected     = "40P01"
)

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// notFound turns pgx's "no rows" into ErrNotFound and leaves every other error alone.
func notFound(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// IsRowFault reports whether the error is about the row's own content (data, constraint or trigger) and not about the
// connection, a lock or the server. Trying a batch again does not help; trying its rows one by one does.
func IsRowFault(err error) bool {
	state := sqlState(err)
	if len(state) != 5 {
		return false
	}
	switch state[:2] {
	case "22", "23", "P0": // data exception, integrity violation, raised by a function or trigger
		return true
	}
	return false
}

// again reports whether the same transaction may succeed at once: deadlocks and serialization failures.
func again(err error) bool {
	state := sqlState(err)
	return state == codeSerializationFailure || state == codeDeadlockDetected
}
