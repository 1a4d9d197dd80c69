// Package api is the HTTP API: access checks, users, plans, subscriptions, webhooks and jobs.
package api

// role is what a key may do. Each role may do what the ones before it may.
type role int

const (
	roleAccess   role = iota + 1 // access checks only
	roleGateway                  // what a model gateway asks and reports
	roleOperator                 // read all, and what keeps things running
	roleAdmin                    // all
)

var roleNames = [...]string{roleAccess: "access", roleGateway: "gateway", roleOperator: "operator", roleAdmin: "admin"}

// Roles are the names of the roles, the weakest first.
func Roles() []string { return append([]string(nil), roleNames[roleAccess:]...) }
