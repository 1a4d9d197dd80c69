package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"

	"github.com/jackc/pgx/v5"

	"termkeeper/migrations"
)

// clone makes a database from the template, and the template first where this is the first test to want it.
func clone(ctx context.Context, server, name string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	template, err := ensureTemplate(ctx, conn, server)
	if err != nil {
		return fmt.Errorf("make the template of the test databases: %w", err)
	}
	statement := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE " + pgx.Identifier{template}.Sanitize()
	// Since version 15 PostgreSQL copies through its log unless told otherwise: half as fast, at twice the CPU.
	var version int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return fmt.Errorf("read the version of the test server: %w", err)
	}
	if version >= 150000 {
		statement += " STRATEGY file_copy"
	}
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("make a test database: %w", err)
	}
	return nil
}

func drop(ctx context.Context, server, name string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "DROP DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop the test database: %w", err)
	}
	return nil
}

// ensureTemplate returns the name of a database with the newest schema. Its name is the hash of the migration files,
// so that a changed file gets a new one. Packages are tested by processes of their own at the same time: the first one
// migrates under an advisory lock, the others wait. The mark that it is complete is its refusal of connections, which
// is also what lets PostgreSQL copy it at any time.
func ensureTemplate(ctx context.Context, conn *pgx.Conn, server string) (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(migrations.FS, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := migrations.FS.ReadFile(path)
		fmt.Fprintf(hash, "%s\x00%s\x00", path, text)
		return err
	})
	if err != nil {
		return "", err
	}
	sum := hash.Sum(nil)
	name := "template_" + hex.EncodeToString(sum[:8])
	key := int64(binary.BigEndian.Uint64(sum)) //nolint:gosec // G115: any number does, the sign too.

	const complete = "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1 AND NOT datallowconn)"
	var done bool
	if err := conn.QueryRow(ctx, complete, name).Scan(&done); err != nil || done {
		return name, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", key); err != nil {
		return "", err
	}
	defer conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", key) //nolint:errcheck // Closing the connection unlocks it too.
	if err := conn.QueryRow(ctx, complete, name).Scan(&done); err != nil || done {
		return name, err
	}
	quoted := pgx.Identifier{name}.Sanitize()
	// What is there is what a killed test run left half-way.
	for _, statement := range []string{"DROP DATABASE IF EXISTS " + quoted + " WITH (FORCE)", "CREATE DATABASE " + quoted} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return "", err
		}
	}
	address, err := onDatabase(server, name)
	if err != nil {
		return "", err
	}
	if _, err := migrations.Up(ctx, address); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+quoted+" WITH ALLOW_CONNECTIONS false")
	return name, err
}

// onDatabase returns the server's URL with another database in it.
func onDatabase(server, name string) (string, error) {
	address, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("TERMKEEPER_TEST_DATABASE_URL must be a URL (postgres://user:password@host/database): %w", err)
	}
	address.Path = "/" + name
	return address.String(), nil
}
