package migrations_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/migrations"
)

// slow are changes that keep a table locked for as long as it is big, or that the program before does not know.
var slow = regexp.MustCompile(`(?i)\b(DROP|RENAME|TRUNCATE|SET NOT NULL|ALTER COLUMN [a-z_]+ (SET DATA )?TYPE|CREATE (UNIQUE )?INDEX|ADD (CONSTRAINT|CHECK|FOREIGN KEY|UNIQUE|PRIMARY KEY)|UPDATE|DELETE|VACUUM|CLUSTER|REINDEX)\b`)

// quick are those of them that are short all the same, and that the program before does not miss.
var quick = regexp.MustCompile(`(?i)\b(CREATE (UNIQUE )?INDEX CONCURRENTLY|ADD CONSTRAINT [a-z_]+ [^;]*NOT VALID|DROP (FUNCTION|TRIGGER|NOT NULL|DEFAULT|CONSTRAINT|INDEX)|CREATE TYPE)\b`)

// few are the tables that have a handful of rows in every installation.
func few() []string { return []string{"plans", "api_keys", "environment", "delivery_channels"} }

// dropsData: the program before reads it, however few rows there are.
var dropsData = regexp.MustCompile(`(?i)\b(DROP (TABLE|COLUMN)|RENAME)\b`)

var subject = regexp.MustCompile(`(?i)\b(?:ON|TABLE(?: IF EXISTS| ONLY)?|UPDATE|FROM|TYPE) +([a-z_]+)`)

// faults lists the statements of a migration that could make others wait, or break the program before. One that is
// harmless has a comment `-- lock: …` above it that says why. Tables of the same file have no rows and no users yet.
func faults(file string) []string {
	up, _, _ := strings.Cut(file, "-- +goose Down")
	known := few()
	for _, m := range regexp.MustCompile(`(?i)CREATE TABLE (?:IF NOT EXISTS )?([a-z_]+)`).FindAllStringSubmatch(up, -1) {
		known = append(known, m[1])
	}
	functions := regexp.MustCompile(`(?s)-- \+goose StatementBegin.*?-- \+goose StatementEnd`)
	var found []string
	for _, statement := range strings.Split(functions.ReplaceAllString(up, ";"), ";\n") {
		var sql, comments []string
		for line := range strings.Lines(statement) {
			if text := strings.TrimSpace(line); strings.HasPrefix(text, "--") {
				comments = append(comments, text)
			} else {
				sql = append(sql, text)
			}
		}
		text := regexp.MustCompile(`'[^']*'`).ReplaceAllString(strings.Join(sql, " "), "''")
		if strings.HasPrefix(text, "COMMENT ") || strings.HasPrefix(text, "CREATE TABLE") || strings.HasPrefix(text, "INSERT ") ||
			!slow.MatchString(quick.ReplaceAllString(text, "")) || strings.Contains(strings.Join(comments, "\n"), "-- lock: ") {
			continue
		}
		if m := subject.FindStringSubmatch(text); m == nil || !slices.Contains(known, m[1]) || dropsData.MatchString(text) {
			found = append(found, text)
		}
	}
	return found
}

// An upgrade stops nothing: the program before runs on the new schema, and no table is locked for long.
func TestMigrationsLockNothingForLong(t *testing.T) {
	t.Parallel()
	entries, err := migrations.FS.ReadDir(".")
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, entry := range entries {
		text, err := migrations.FS.ReadFile(entry.Name())
		require.NoError(t, err)
		require.Empty(t, faults(string(text)), "%s: see \"Upgrade\" in docs/operations.md", entry.Name())
	}
}

func TestFaultsOfMigrations(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		"ALTER TABLE users DROP COLUMN name;", "ALTER TABLE users RENAME COLUMN name TO title;", "ALTER TABLE users ALTER COLUMN name TYPE bytea;",
		"ALTER TABLE users ALTER COLUMN name SET NOT NULL;", "CREATE INDEX users_name ON users (name);", "CREATE UNIQUE INDEX users_name ON users (name);",
		"ALTER TABLE users\n    ADD CONSTRAINT named CHECK (name <> '');", "ALTER TABLE plans DROP COLUMN name;",
		"ALTER TABLE users DROP CONSTRAINT named, ADD CONSTRAINT named CHECK (name <> '');", "UPDATE users SET name = 'x';", "DROP TABLE users;",
	} {
		require.Len(t, faults("-- +goose Up\n"+statement+"\n-- +goose Down\n"), 1, statement)
		require.Empty(t, faults("-- +goose Up\n-- lock: the table has ten rows.\n"+statement+"\n-- +goose Down\n"), statement)
	}
	for _, statement := range []string{
		"ALTER TABLE users ADD COLUMN title text;", "CREATE TABLE new (id int, UNIQUE (id));\nCREATE INDEX new_id ON new (id);",
		"CREATE INDEX CONCURRENTLY users_name ON users (name);", "ALTER TABLE users ADD CONSTRAINT named CHECK (name <> '') NOT VALID;",
		"ALTER TABLE plans ADD CONSTRAINT named CHECK (name <> '');", "DROP INDEX CONCURRENTLY users_name;",
		"ALTER TABLE users DROP CONSTRAINT named, ADD CONSTRAINT named CHECK (name IN ('a')) NOT VALID;", "COMMENT ON COLUMN users.name IS 'Never DROP it.';", "INSERT INTO plans (key) VALUES ('DELETE');",
		"-- +goose StatementBegin\nCREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN UPDATE users SET name = ''; END $$;\n-- +goose StatementEnd",
	} {
		require.Empty(t, faults("-- +goose Up\n"+statement+"\n-- +goose Down\nDROP TABLE users;"), statement)
	}
}
