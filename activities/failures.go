package activities

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"go.temporal.io/sdk/temporal"

	"termkeeper/internal/payment"
	"termkeeper/internal/store"
)

// The types of failures that operators see in the Web UI.
const (
	FailureInvalidInput = "InvalidInput" // the run's input is wrong; trying again does not help
	FailureDatabase     = "Database"
	// FailureProvider: the payment provider gave no answer. Trying again is the next run's business: it may be down for long.
	FailureProvider = "ProviderUnavailable"
)

func invalidInput(err error) error {
	return temporal.NewNonRetryableApplicationError(err.Error(), FailureInvalidInput, nil)
}

// failure maps what a batch could not do to what Temporal keeps. The error itself is left out: it can hold the content
// of rows, and histories are read by more people than the database.
func failure(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, payment.ErrNoAnswer) {
		return temporal.NewNonRetryableApplicationError(plain(err), FailureProvider, nil)
	}
	if isProgramFault(err) {
		return temporal.NewNonRetryableApplicationError(plain(err), FailureDatabase, nil)
	}
	return temporal.NewApplicationError(plain(err), FailureDatabase)
}

// isProgramFault: the statement and the schema do not fit each other. Trying again is the next run's business.
func isProgramFault(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && len(pgErr.Code) == 5 && (pgErr.Code[:2] == "42" || pgErr.Code[:2] == "0A")
}

// plain says what failed without any content of a row: PostgreSQL's message and detail repeat values, and a message that
// a trigger raises can hold anything.
func plain(err error) string {
	var pgErr *pgconn.PgError
	var connectErr *pgconn.ConnectError
	var netErr net.Error
	var silent *payment.NoAnswerError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &silent):
		return silent.Error()
	case errors.As(err, &pgErr):
		text := "the database answered with SQLSTATE " + pgErr.Code
		if pgErr.TableName != "" {
			text += fmt.Sprintf(" on table %s", pgErr.TableName)
		}
		if pgErr.ConstraintName != "" {
			text += fmt.Sprintf(", constraint %s", pgErr.ConstraintName)
		}
		if !store.IsRowFault(err) && pgErr.Where == "" { // inside a function the words can be anybody's, whatever their SQLSTATE
			text += ": " + pgErr.Message
		}
		return text
	case errors.As(err, &connectErr):
		return "the database cannot be reached"
	case errors.Is(err, context.DeadlineExceeded):
		return "it took longer than it may"
	case errors.Is(err, context.Canceled):
		return "it was stopped"
	case errors.As(err, &netErr):
		return "the connection to the database broke"
	default:
		return "the database could not be used: " + fmt.Sprintf("%T", errors.Unwrap(err))
	}
}
