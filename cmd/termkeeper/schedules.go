package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"termkeeper/internal/config"
	"termkeeper/internal/store"
	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

func schedulesCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedules",
		Short: "Apply and list the Temporal Schedules of the jobs",
		Example: `  termkeeper schedules apply
  TERMKEEPER_JOB_SUBSCRIPTION_EXPIRY_EVERY=2s termkeeper schedules apply
  termkeeper schedules list`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(schedulesApplyCommand(p), schedulesListCommand(p))
	return cmd
}

func schedulesApplyCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:     "apply",
		Short:   "Create or update the schedules; a paused one stays paused, foreign ones are left alone",
		Example: "  termkeeper schedules apply",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.config(cmd)
			if err != nil {
				return err
			}
			tc, err := p.reachTemporal(cmd.Context(), c)
			if err != nil {
				return err
			}
			defer tc.Close()
			schedules, err := newSchedules(c, tc, p.stdout)
			if err != nil {
				return usage(err)
			}
			if err := schedules.Apply(cmd.Context()); err != nil {
				return temporalError(err)
			}
			_, err = fmt.Fprintf(p.stdout, "%d schedules are as they should be\n", len(schedules.Jobs))
			return err
		},
	}
}

func schedulesListCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the schedules with their last run, next run and lag",
		Long:    "Lists the schedules. The lag is what the last scheduled run had from its instant to its first activity.",
		Example: "  termkeeper schedules list",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.config(cmd, config.NeedDatabase)
			if err != nil {
				return err
			}
			tc, err := p.reachTemporal(cmd.Context(), c)
			if err != nil {
				return err
			}
			defer tc.Close()
			known, err := temporalclient.NewSchedules(tc, workflows.JobIDs()).List(cmd.Context())
			if err != nil {
				return temporalError(err)
			}
			s, pool, err := openStore(cmd.Context(), c, cmd.Name())
			if err != nil {
				return err
			}
			defer pool.Close()
			runs, err := s.LastRuns(cmd.Context(), workflows.JobIDs())
			if err != nil {
				return err
			}
			return p.printSchedules(known, runs)
		},
	}
	overrideFlag(cmd, "database-url", "DATABASE_URL", "PostgreSQL URL")
	return cmd
}

func (p *program) printSchedules(known map[string]temporalclient.Schedule, runs map[string]store.LastRun) error {
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "SCHEDULE\tEVERY\tSTATE\tLAST RUN\tOUTCOME\tLAG\tNEXT RUN\tSKIPPED\tMISSED\tNOTE") // Flush has the error
	for _, id := range workflows.JobIDs() {
		schedule, applied := known[id]
		if !applied {
			_, _ = fmt.Fprintf(table, "%s\t-\tmissing\t-\t-\t-\t-\t-\t-\t`termkeeper schedules apply` makes it\n", id)
			continue
		}
		state := "running"
		if schedule.Paused {
			state = "paused"
		}
		last := runs[id].Latest
		outcome, lag := last.Outcome, "-"
		if last.RunID != "" && outcome == "" {
			outcome = "running"
		}
		if last.Trigger == store.TriggerScheduled {
			lag = last.StartedAt.Sub(last.ScheduledAt).Round(time.Millisecond).String()
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", id, schedule.Every, state, orDash(last.StartedAt), dash(outcome), lag,
			orDash(schedule.NextRunAt), schedule.SkippedOverlaps, schedule.MissedCatchups, schedule.Note)
	}
	return table.Flush()
}

func orDash(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// temporalError says what to do about a Temporal that does not answer.
func temporalError(err error) error {
	if errors.Is(err, temporalclient.ErrUnavailable) || temporalclient.Unavailable(err) {
		return unreachable(fmt.Errorf("%w; check that Temporal runs and that TEMPORAL_ADDRESS points at it", err))
	}
	return err
}
