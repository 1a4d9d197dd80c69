#!/bin/sh
# Brings both databases of the Temporal server to the schema of this version. It can be run again at any time: what is
# there is left alone. SQL_PLUGIN, SQL_HOST, SQL_PORT, SQL_USER and SQL_PASSWORD say where they are.
set -eu
set_up() {
  temporal-sql-tool --database "$1" setup-schema --version 0.0
  temporal-sql-tool --database "$1" update-schema --schema-name "$2"
}
set_up temporal postgresql/v12/temporal
set_up temporal_visibility postgresql/v12/visibility
