package store

import (
	"context"
	"fmt"
)

// codeUndefinedTable: the table is not there.
const codeUndefinedTable = "42P01"

// schemaVersion reads what the migration tool keeps.
const schemaVersion = `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`

// SchemaVersion is the version of the newest migration that the database has; 0 when it was never migrated.
func (s *Store) SchemaVersion(ctx context.Context) (int64, error) {
	var version int64
	err := s.pool.QueryRow(ctx, schemaVersion).Scan(&version)
	if sqlState(err) == codeUndefinedTable {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the schema version: %w", err)
	}
	return version, nil
}
