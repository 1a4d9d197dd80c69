package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// User is how to reach a user. Empty fields are unknown.
type User struct {
	ID       string
	Email    string
	Name     string
	Locale   string // BCP 47
	TimeZone string // IANA
	// StripeCustomerIDs are the customers at Stripe that are known to be this user.
	StripeCustomerIDs []string
	CreatedAt         time.Time
	UpdatedAt         time.Time
}

const userColumns = `u.id, u.email, u.name, u.locale, u.time_zone, u.created_at, u.updated_at,
	ARRAY(SELECT c.customer_id FROM stripe_customers c WHERE c.user_id = u.id ORDER BY c.customer_id) AS stripe_customer_ids`

type userRow struct {
	ID        string
	Email     *string
	Name      *string
	Locale    *string
	TimeZone  *string
	CreatedAt time.Time
	UpdatedAt time.Time

	StripeCustomerIDs []string `db:"stripe_customer_ids"`
}

func (r userRow) domain() User {
	return User{
		ID: r.ID, Email: value(r.Email), Name: value(r.Name), Locale: value(r.Locale), TimeZone: value(r.TimeZone),
		StripeCustomerIDs: r.StripeCustomerIDs, CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC(),
	}
}

const userByID = `SELECT ` + userColumns + ` FROM users u WHERE u.id = $1`

// User is the user with this id, or ErrNotFound when nothing is known about how to reach them.
func (s *Store) User(ctx context.Context, id string) (User, error) {
	rows, err := s.pool.Query(ctx, userByID, id)
	if err != nil {
		return User{}, fmt.Errorf("reading user %s: %w", id, err)
	}
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[userRow])
	if err != nil {
		return User{}, fmt.Errorf("reading user %s: %w", id, notFound(err))
	}
	return row.domain(), nil
}

// putUser: xmax is 0 only in a row that this statement inserted.
const putUser = `INSERT INTO users AS u (id, email, name, locale, time_zone) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO UPDATE SET email = excluded.email, name = excluded.name, locale = excluded.locale, time_zone = excluded.time_zone, updated_at = now()
RETURNING ` + userColumns + `, u.xmax = 0 AS created`

// UserPut is a user as written. Created says that there was no row before.
type UserPut struct {
	User
	Created bool
}

// PutUser writes all fields of a user; empty ones become unknown.
func (s *Store) PutUser(ctx context.Context, u User) (UserPut, error) {
	type result struct {
		userRow
		Created bool
	}
	var put UserPut
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, putUser, u.ID, text(u.Email), text(u.Name), text(u.Locale), text(u.TimeZone))
		if err != nil {
			return err
		}
		row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[result])
		if err != nil {
			return err
		}
		put = UserPut{User: row.domain(), Created: row.Created}
		return finishClaim(ctx, tx, put)
	})
	if err != nil {
		return UserPut{}, fmt.Errorf("writing user %s: %w", u.ID, err)
	}
	return put, nil
}
