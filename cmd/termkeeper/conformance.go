package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"termkeeper/internal/conformance"
)

const (
	defaultLimit  = 720 // six events in all their orders
	defaultLeeway = time.Hour
	defaultGrace  = 72 * time.Hour
	// effectWithin is how long the contract gives an event that was taken.
	effectWithin = 2 * time.Second
	// defaultPatience is five times as long: a busy machine is no difference.
	defaultPatience = 10 * time.Second
)

func conformanceCommand(p *program) *cobra.Command {
	var o conformanceOptions
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Prove that events in any order end in one state",
		Long: `Plays the lives of fresh subscriptions against a running instance: renewals, failed payments, cancellations, changes of plan. Their
signed events are sent in every order, twice, late, or not at all, and GET /v1/access must say the same in the end. It needs
nothing of the instance but that endpoint and POST /v1/webhooks/stripe.
Exit code 1 if any order ends differently; each is printed.`,
		Example: `  termkeeper conformance --url http://127.0.0.1:8080 --secret whsec_… --key tk_…
  termkeeper conformance --url http://127.0.0.1:8080 --secret whsec_… --key tk_… --provider 127.0.0.1:4242
  termkeeper conformance --url http://127.0.0.1:8080 --secret whsec_… --plan pro --price price_1 --limit 100 --seed 7`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.runConformance(cmd, o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.url, "url", "", "base URL of the instance, for instance http://127.0.0.1:8080")
	flags.StringVar(&o.secret, "secret", "", "one of its webhook secrets")
	flags.StringVar(&o.key, "key", "", "an API key of it (overrides TERMKEEPER_API_KEY)")
	flags.StringArrayVar(&o.plans, "plan", nil, "a plan of it, in place of making two; a first with refund_policy end, a second with keep")
	flags.StringArrayVar(&o.prices, "price", nil, "a Stripe price of the --plan at the same place")
	flags.StringVar(&o.provider, "provider", "", "serve a small Stripe API at this address; the instance runs with STRIPE_API_BASE there")
	flags.StringArrayVar(&o.lives, "life", nil, "try only this one; can be repeated: "+strings.Join(conformance.Lives(), " · "))
	flags.Uint64Var(&o.seed, "seed", 0, "repeats the orders of an earlier run (default: by chance)")
	flags.IntVar(&o.limit, "limit", defaultLimit, "most permutations of one life; all where there are not more")
	flags.DurationVar(&o.leeway, "leeway", defaultLeeway, "its TERMKEEPER_RENEWAL_LEEWAY")
	flags.DurationVar(&o.grace, "grace", defaultGrace, "grace period of the plans")
	flags.DurationVar(&o.patience, "patience", defaultPatience, "how long an effect may take before the order counts as different")
	flags.BoolVar(&o.json, "json", false, "print the report as JSON")
	return cmd
}

type conformanceOptions struct {
	url, secret, key string
	provider         string
	plans, prices    []string
	lives            []string
	seed             uint64
	limit            int
	leeway, grace    time.Duration
	patience         time.Duration
	json             bool
}

func (o conformanceOptions) settings() (conformance.Settings, error) {
	s := conformance.Settings{
		URL: strings.TrimSuffix(o.url, "/"), Secret: o.secret, Key: o.key, Seed: o.seed, Limit: o.limit, Leeway: o.leeway, Grace: o.grace,
		Lives: o.lives, Settling: effectWithin, Patience: o.patience,
	}
	base, err := url.Parse(o.url)
	switch {
	case err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https"):
		return s, errors.New("--url must be the base URL of a running instance, like http://127.0.0.1:8080")
	case o.secret == "":
		return s, errors.New("--secret must be one of the instance's webhook secrets")
	case len(o.plans) != len(o.prices):
		return s, errors.New("each --plan needs a --price that sells it")
	case len(o.plans) > 2:
		return s, errors.New("two plans are the most: one with refund_policy end, one with keep")
	case o.limit < 1:
		return s, errors.New("--limit must be at least 1")
	case o.leeway < 0 || o.grace < 0 || o.patience < 0:
		return s, errors.New("--leeway, --grace and --patience must not be negative")
	}
	for _, name := range o.lives {
		if !slices.Contains(conformance.Lives(), name) {
			return s, fmt.Errorf("there is no life %q; there are %s", name, strings.Join(conformance.Lives(), ", "))
		}
	}
	for i, key := range o.plans {
		s.Plans = append(s.Plans, conformance.Plan{Key: key, Price: o.prices[i]})
	}
	return s, nil
}

func (p *program) runConformance(cmd *cobra.Command, o conformanceOptions) error {
	if o.key == "" {
		o.key = p.getenv("TERMKEEPER_API_KEY")
	}
	if !cmd.Flags().Changed("seed") {
		o.seed = uint64(rand.Uint32()) //nolint:gosec // orders need no secret; short, because a person types it
	}
	settings, err := o.settings()
	if err != nil {
		return usage(fmt.Errorf("%w; `termkeeper conformance --help` shows how", err))
	}
	if !o.json {
		settings.Progress = func(done, all int) { fmt.Fprintf(p.stdout, "%d of %d orders tried\n", done, all) }
	}
	if o.provider != "" {
		settings.Provider, err = conformance.Serve(cmd.Context(), o.provider)
		if err != nil {
			return usage(fmt.Errorf("%w; choose another address with --provider", err))
		}
		defer func() { _ = settings.Provider.Close() }() // nobody asks any more
	}
	report, err := conformance.Run(cmd.Context(), settings)
	switch {
	case conformance.Unreachable(err):
		return unreachable(fmt.Errorf("%w; check --url and that it runs", err))
	case conformance.Misused(err):
		return usage(err)
	case err != nil:
		return fmt.Errorf("trying the orders: %w", err)
	}
	if o.json {
		encoder := json.NewEncoder(p.stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	} else {
		report.Print(p.stdout)
	}
	if err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	if n := len(report.Differences); n > 0 {
		return fmt.Errorf("%d of %d orders did not end as they must; the report names each", n, report.Tried)
	}
	return nil
}
