package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"termkeeper/api"
	"termkeeper/internal/config"
	"termkeeper/internal/secret"
	"termkeeper/internal/store"
)

func apikeyCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apikey",
		Short: "Make, list and revoke the keys of the HTTP API; needs only the database",
		Example: `  termkeeper apikey create --role admin --name first
  termkeeper apikey list
  termkeeper apikey revoke 01980000-0000-7000-8000-000000000000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(apikeyCreateCommand(p), apikeyListCommand(p), apikeyRevokeCommand(p))
	return cmd
}

func apikeyCreateCommand(p *program) *cobra.Command {
	var name, role string
	cmd := &cobra.Command{
		Use:   "create --role ROLE --name NAME",
		Short: "Make a key and print it, once",
		Long:  "Make a key and print it on standard output. It is not kept and cannot be shown again.\nRoles, each with what the ones before it may: access, gateway, operator, admin.",
		Example: `  termkeeper apikey create --role access --name web-shop
  KEY=$(termkeeper apikey create --role admin --name first)`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(api.Roles(), role) {
				return usage(fmt.Errorf("--role must be one of %s", strings.Join(api.Roles(), ", ")))
			}
			if strings.TrimSpace(name) == "" || len(name) > 100 || strings.ContainsAny(name, "\n\r\x00") {
				return usage(errors.New("--name must say in one line whose key it is"))
			}
			return p.withStore(cmd, func(s *store.Store) error {
				key := secret.NewAPIKey()
				kept, err := s.CreateAPIKey(cmd.Context(), store.APIKey{Name: name, Role: role, Hash: key.Hash[:], Prefix: key.Prefix})
				if err != nil {
					return err
				}
				_, _ = fmt.Fprintf(p.stderr, "key %s of role %s for %s; it is not shown again:\n", kept.ID, kept.Role, kept.Name) // the key itself matters
				_, err = fmt.Fprintln(p.stdout, key.Text.Reveal())
				return err
			})
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "what the key may do: "+strings.Join(api.Roles(), ", "))
	cmd.Flags().StringVar(&name, "name", "", "whose key it is")
	overrideFlag(cmd, "database-url", "DATABASE_URL", "PostgreSQL URL")
	return cmd
}

func apikeyListCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the keys, revoked ones too",
		Example: "  termkeeper apikey list",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.withStore(cmd, func(s *store.Store) error {
				keys, err := s.APIKeys(cmd.Context())
				if err != nil {
					return err
				}
				table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintln(table, "ID\tROLE\tKEY\tCREATED\tREVOKED\tNAME") // Flush has the error
				for _, k := range keys {
					revoked := "-"
					if k.RevokedAt != nil {
						revoked = k.RevokedAt.UTC().Format(time.RFC3339)
					}
					_, _ = fmt.Fprintf(table, "%s\t%s\t%s…\t%s\t%s\t%s\n", k.ID, k.Role, k.Prefix, k.CreatedAt.Format(time.RFC3339), revoked, k.Name)
				}
				return table.Flush()
			})
		},
	}
	overrideFlag(cmd, "database-url", "DATABASE_URL", "PostgreSQL URL")
	return cmd
}

func apikeyRevokeCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "revoke ID",
		Short:   "End a key for good; running servers refuse it within two seconds",
		Example: "  termkeeper apikey revoke 01980000-0000-7000-8000-000000000000",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || uuid.Validate(args[0]) != nil {
				return usage(errors.New("give the id of one key; `termkeeper apikey list` shows them"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withStore(cmd, func(s *store.Store) error {
				key, err := s.RevokeAPIKey(cmd.Context(), args[0])
				if errors.Is(err, store.ErrNotFound) {
					return fmt.Errorf("there is no key %s; `termkeeper apikey list` shows them", args[0])
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(p.stdout, "revoked %s (%s, %s…)\n", key.ID, key.Name, key.Prefix)
				return err
			})
		},
	}
	overrideFlag(cmd, "database-url", "DATABASE_URL", "PostgreSQL URL")
	return cmd
}

// withStore runs do with the database that the environment names.
func (p *program) withStore(cmd *cobra.Command, do func(*store.Store) error) error {
	c, err := p.config(cmd, config.NeedDatabase)
	if err != nil {
		return err
	}
	s, pool, err := openStore(cmd.Context(), c, cmd.Name())
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(s)
}
