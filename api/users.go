package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"termkeeper/internal/intake"
	"termkeeper/internal/store"
)

type userRoutes struct {
	store  *store.Store
	intake *intake.Intake
}

type userJSON struct {
	ID        string  `json:"id"`
	Email     *string `json:"email"`
	Name      *string `json:"name"`
	Locale    *string `json:"locale"`
	TimeZone  *string `json:"time_zone"`
	CreatedAt stamp   `json:"created_at"`
	UpdatedAt stamp   `json:"updated_at"`

	StripeCustomerIDs []string `json:"stripe_customer_ids"`
}

func showUser(u store.User) userJSON {
	return userJSON{
		ID: u.ID, Email: optional(u.Email), Name: optional(u.Name), Locale: optional(u.Locale), TimeZone: optional(u.TimeZone),
		CreatedAt: stamp(u.CreatedAt), UpdatedAt: stamp(u.UpdatedAt), StripeCustomerIDs: u.StripeCustomerIDs,
	}
}

func showPut(put store.UserPut) (status int, shown any) {
	if put.Created {
		return http.StatusCreated, showUser(put.User)
	}
	return http.StatusOK, showUser(put.User)
}

// put writes all fields of a user; absent and null ones become unknown, and Stripe may fill them in again.
func (u userRoutes) put(c echo.Context) error {
	var in struct {
		Email    *string `json:"email"`
		Name     *string `json:"name"`
		Locale   *string `json:"locale"`
		TimeZone *string `json:"time_zone"`
	}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	user := store.User{ID: pathText(c, "id")}
	var errs fieldErrors
	errs.line("/id", user.ID, maxID, true)
	if in.Email != nil {
		user.Email = *in.Email
		errs.email("/email", user.Email)
	}
	if in.Name != nil {
		user.Name = *in.Name
		errs.line("/name", user.Name, maxText, false)
	}
	if in.Locale != nil {
		user.Locale = *in.Locale
		errs.locale("/locale", user.Locale)
	}
	if in.TimeZone != nil {
		user.TimeZone = *in.TimeZone
		errs.timeZone("/time_zone", user.TimeZone)
	}
	if err := errs.err(); err != nil {
		return err
	}
	put, err := u.store.PutUser(answers(c, showPut), user)
	if err != nil {
		return err
	}
	return c.JSON(showPut(put))
}

func (u userRoutes) one(c echo.Context) error {
	id := pathText(c, "id")
	var errs fieldErrors
	errs.line("/id", id, maxID, true)
	if err := errs.err(); err != nil {
		return err
	}
	user, err := u.store.User(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showUser(user))
}

type linkJSON struct {
	UserID     string `json:"user_id"`
	CustomerID string `json:"customer_id"`
}

func showLink(l store.StripeCustomer) (status int, shown any) {
	return http.StatusOK, linkJSON{UserID: l.UserID, CustomerID: l.ID}
}

// linkCustomer says which Stripe customer a user is. A link to another user gives way: what a person says counts for more
// than what an event has taught, and that is how a wrong link is put right.
func (u userRoutes) linkCustomer(c echo.Context) error {
	var in struct {
		CustomerID string `json:"customer_id"`
	}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	id := pathText(c, "id")
	var errs fieldErrors
	errs.line("/id", id, maxID, true)
	errs.line("/customer_id", in.CustomerID, maxID, true)
	if err := errs.err(); err != nil {
		return err
	}
	linked, err := u.store.LinkStripeCustomer(answers(c, showLink), in.CustomerID, id)
	if err != nil {
		return err
	}
	u.intake.Heal() // events may wait for this link
	return c.JSON(showLink(linked))
}
