package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"termkeeper/internal/config"
	"termkeeper/migrations"
)

func migrateCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Change or show the database schema",
		Example: `  termkeeper migrate up
  termkeeper migrate status`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(migrateUpCommand(p), migrateStatusCommand(p), migrateDownCommand(p))
	return cmd
}

func migrateUpCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Bring the schema to the newest version; any number at once is safe",
		Example: "  DATABASE_URL=postgres://user@host/termkeeper termkeeper migrate up",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.config(cmd, config.NeedDatabase)
			if err != nil {
				return err
			}
			if err := checkEnvironment(cmd.Context(), c, "migrate"); err != nil {
				return err
			}
			applied, err := migrations.Up(cmd.Context(), c.DatabaseURL.Reveal())
			for _, file := range applied {
				_, _ = fmt.Fprintln(p.stdout, "applied", file) // the error below is the one that matters
			}
			if err != nil {
				return databaseError(err)
			}
			_, err = fmt.Fprintf(p.stdout, "the schema is at version %d\n", migrations.Newest())
			return err
		},
	}
	overrideFlag(cmd, "database-url", "DATABASE_URL", "PostgreSQL URL")
	return cmd
}

func migrateStatusCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "List the migrations and what the database has of them",
		Example: "  termkeeper migrate status",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.config(cmd, config.NeedDatabase)
			if err != nil {
				return err
			}
			states, err := migrations.Status(cmd.Context(), c.DatabaseURL.Reveal())
			if err != nil {
				return databaseError(err)
			}
			for _, s := range states {
				state := "pending"
				if s.Applied {
					state = "applied"
				}
				if _, err := fmt.Fprintf(p.stdout, "%-8s %s\n", state, s.File); err != nil {
					return err
				}
			}
			return nil
		},
	}
	overrideFlag(cmd, "database-url", "DATABASE_URL", "PostgreSQL URL")
	return cmd
}

func migrateDownCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "down",
		Short:   "Take the newest migration back, with the data that it holds",
		Example: "  termkeeper migrate down",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.config(cmd, config.NeedDatabase)
			if err != nil {
				return err
			}
			force, err := cmd.Flags().GetBool("force")
			if err != nil {
				return err
			}
			if c.Environment == config.Production && !force {
				return errors.New("taking a migration back drops its data: in production give --force if you mean it")
			}
			if err := checkEnvironment(cmd.Context(), c, "migrate"); err != nil {
				return err
			}
			undone, err := migrations.Down(cmd.Context(), c.DatabaseURL.Reveal())
			if err != nil {
				return databaseError(err)
			}
			_, err = fmt.Fprintln(p.stdout, "took back", undone)
			return err
		},
	}
	cmd.Flags().Bool("force", false, "do it in production too")
	overrideFlag(cmd, "database-url", "DATABASE_URL", "PostgreSQL URL")
	return cmd
}
