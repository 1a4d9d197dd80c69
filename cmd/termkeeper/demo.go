package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"termkeeper/internal/simulator"
)

const (
	// demoTerm is how long the subscription of the demo lasts. Long enough to ask a few times before its end.
	demoTerm = 8 * time.Second
	// demoPatience is how long a step may take before the demo calls it wrong. Marks and mails take milliseconds to
	// seconds on a healthy system; a job that does not run must not hang the demo.
	demoPatience = 30 * time.Second
	demoFeature  = "demo"
	demoPlan     = "demo"
	demoPrice    = "price_demo"
)

func demoCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play the main walk against a running `termkeeper dev`",
		Long: `Plays the main walk in under a minute: a paid subscription by a signed webhook, access, its end, no access at that
instant, the mark by the scan, the mail in the sink. One line per step with the measured delay.
Exit code 1 if any step is wrong.`,
		Example: `  termkeeper demo
  termkeeper demo --data-dir /var/tmp/termkeeper`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dataDir, err := cmd.Flags().GetString("data-dir")
			if err != nil {
				return err
			}
			system, err := readDevFile(dataDir)
			if err != nil {
				return err
			}
			d := &demo{system: system, out: p.stdout, http: &http.Client{Timeout: 10 * time.Second}}
			return d.play(cmd.Context())
		},
	}
	cmd.Flags().String("data-dir", defaultDataDir, "folder of the running `termkeeper dev`")
	return cmd
}

// demo is one walk through the main job against a running system.
type demo struct {
	system devFile
	out    io.Writer
	http   *http.Client

	user, email, customer string
	end                   time.Time
}

func (d *demo) play(ctx context.Context) error {
	id := simulator.NewID("demo")
	d.user, d.customer = "u_"+id, "cus_"+id
	d.email = strings.ToLower(id) + "@example.com"
	for _, step := range []func(context.Context) error{d.prepare, d.pay, d.hasAccess, d.losesAccess, d.isMarked, d.isTold} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("the demo stopped: %w", err)
		}
	}
	_, err := fmt.Fprintln(d.out, "every step was right")
	return err
}

func (d *demo) say(what string, took time.Duration, format string, args ...any) {
	_, _ = fmt.Fprintf(d.out, "%-34s %9.1f ms   %s\n", what, float64(took.Microseconds())/1000, fmt.Sprintf(format, args...)) // a closed terminal stops nothing
}

// prepare makes the plan that the demo sells, once, and a user with an address.
func (d *demo) prepare(ctx context.Context) error {
	begun := time.Now()
	status, answer, err := d.call(ctx, http.MethodPost, "/v1/plans", map[string]any{
		"key": demoPlan, "name": "Demo", "features": []string{demoFeature}, "stripe_price_ids": []string{demoPrice},
	})
	if err != nil {
		return err
	}
	if status != http.StatusCreated && status != http.StatusConflict {
		return fmt.Errorf("making the plan was answered with %d: %s", status, answer)
	}
	status, answer, err = d.call(ctx, http.MethodPut, "/v1/users/"+d.user, map[string]any{"email": d.email, "name": "Demo", "locale": "en"})
	if err != nil {
		return err
	}
	if status/100 != 2 {
		return fmt.Errorf("making the user was answered with %d: %s", status, answer)
	}
	d.say("plan and user are there", time.Since(begun), "%s", d.user)
	return nil
}

// pay sends the signed event of a subscription that is paid and set to end in a few seconds.
func (d *demo) pay(ctx context.Context) error {
	now := time.Now().UTC().Truncate(time.Second)
	d.end = now.Add(demoTerm)
	body := simulator.EventBody(simulator.Shape2025, simulator.NewID("evt"), "customer.subscription.created", now, simulator.SubscriptionFixture{
		ID: simulator.NewID("sub"), CustomerID: d.customer, PriceID: demoPrice, UserID: d.user, Status: "active",
		PeriodStart: now, PeriodEnd: d.end, CancelAtPeriodEnd: true,
	})
	request, err := simulator.SignedRequest(ctx, d.system.APIURL+"/v1/webhooks/stripe", body, d.system.WebhookSecret, time.Now())
	if err != nil {
		return err
	}
	begun := time.Now()
	status, answer, err := d.do(request)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("the signed event was answered with %d: %s", status, answer)
	}
	d.say("signed event taken", time.Since(begun), "paid until %s", d.end.Format(time.RFC3339))
	return nil
}

type demoAccess struct {
	Allowed        bool      `json:"allowed"`
	Reason         string    `json:"reason"`
	SubscriptionID string    `json:"subscription_id"`
	DecidedAt      time.Time `json:"decided_at"`
}

func (d *demo) access(ctx context.Context) (demoAccess, error) {
	var a demoAccess
	query := url.Values{"user_id": {d.user}, "feature": {demoFeature}}
	status, answer, err := d.call(ctx, http.MethodGet, "/v1/access?"+query.Encode(), nil)
	if err != nil {
		return a, err
	}
	if status != http.StatusOK {
		return a, fmt.Errorf("an access check was answered with %d: %s", status, answer)
	}
	return a, json.Unmarshal(answer, &a)
}

func (d *demo) hasAccess(ctx context.Context) error {
	begun := time.Now()
	return d.until(ctx, "the user has access", func() (bool, error) {
		a, err := d.access(ctx)
		if err != nil || !a.Allowed {
			return false, err
		}
		d.say("access: yes", time.Since(begun), "reason %s", a.Reason)
		return true, nil
	})
}

// losesAccess asks on and on over the end: every answer before it must be yes, every one from it on no.
func (d *demo) losesAccess(ctx context.Context) error {
	asked := 0
	for {
		a, err := d.access(ctx)
		if err != nil {
			return err
		}
		asked++
		if before := a.DecidedAt.Before(d.end); a.Allowed != before {
			return fmt.Errorf("at %s, with the end at %s, access was %t", a.DecidedAt.Format(time.RFC3339Nano), d.end.Format(time.RFC3339Nano), a.Allowed)
		}
		if !a.Allowed {
			d.say("access: no, at the instant", a.DecidedAt.Sub(d.end), "reason %s, the first answer after the end of %d asked", a.Reason, asked)
			return nil
		}
		// Far from the end there is no need to ask often.
		wait := max(min(time.Until(d.end)-50*time.Millisecond, 500*time.Millisecond), time.Millisecond)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

func (d *demo) isMarked(ctx context.Context) error {
	a, err := d.access(ctx)
	if err != nil {
		return err
	}
	return d.until(ctx, "the scan marks the row", func() (bool, error) {
		status, answer, err := d.call(ctx, http.MethodGet, "/v1/subscriptions/"+a.SubscriptionID, nil)
		if err != nil {
			return false, err
		}
		if status != http.StatusOK {
			return false, fmt.Errorf("reading the subscription was answered with %d: %s", status, answer)
		}
		var s struct {
			Status    string     `json:"status"`
			ExpiredAt *time.Time `json:"expired_at"`
		}
		if err := json.Unmarshal(answer, &s); err != nil {
			return false, err
		}
		if s.Status != "expired" || s.ExpiredAt == nil {
			return false, nil
		}
		d.say("marked expired by the scan", s.ExpiredAt.Sub(d.end), "by the job subscription-expiry")
		return true, nil
	})
}

func (d *demo) isTold(ctx context.Context) error {
	if d.system.MailURL == "" {
		_, err := fmt.Fprintln(d.out, "the mail went to your own SMTP server; there is no sink to look into")
		return err
	}
	return d.until(ctx, "the mail is in the sink", func() (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.system.MailURL+"/messages", nil)
		if err != nil {
			return false, err
		}
		status, answer, err := d.do(request)
		if err != nil {
			return false, err
		}
		var messages []struct {
			To         string    `json:"to"`
			Subject    string    `json:"subject"`
			ReceivedAt time.Time `json:"received_at"`
		}
		if status != http.StatusOK {
			return false, fmt.Errorf("the mail sink answered with %d: %s", status, answer)
		}
		if err := json.Unmarshal(answer, &messages); err != nil {
			return false, err
		}
		for _, m := range messages {
			if m.To == d.email && m.ReceivedAt.After(d.end) { // the mail about the start came before
				d.say("the mail is in the sink", m.ReceivedAt.Sub(d.end), "%q", m.Subject)
				return true, nil
			}
		}
		return false, nil
	})
}

// until tries a step again and again until it is done, or wrong, or takes too long.
func (d *demo) until(ctx context.Context, what string, try func() (bool, error)) error {
	patience, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	for {
		done, err := try()
		if err != nil || done {
			return err
		}
		if err := sleep(patience, 10*time.Millisecond); err != nil {
			if ctx.Err() == nil {
				return fmt.Errorf("%s: not within %s", what, demoPatience)
			}
			return err
		}
	}
}

func (d *demo) call(ctx context.Context, method, path string, body any) (int, []byte, error) {
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		content = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, method, d.system.APIURL+path, content)
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+d.system.APIKey)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return d.do(request)
}

func (d *demo) do(request *http.Request) (int, []byte, error) {
	response, err := d.http.Do(request)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return 0, nil, err
		}
		return 0, nil, unreachable(fmt.Errorf("%w; is `termkeeper dev` still running?", err))
	}
	defer func() { _ = response.Body.Close() }()
	const most = 16 << 20 // the mail sink answers with all it has
	answer, err := io.ReadAll(io.LimitReader(response.Body, most))
	return response.StatusCode, answer, err
}

// sleep waits for d, or less when ctx ends first, and then says why.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
