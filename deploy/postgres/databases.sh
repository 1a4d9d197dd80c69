#!/bin/sh
# The users and databases of the compose file. The PostgreSQL image runs it once, on an empty volume. Each user owns its own
# databases and nothing else, so that neither can read the other's.
set -eu
psql --set ON_ERROR_STOP=1 --no-psqlrc --username "${POSTGRES_USER:-postgres}" --dbname postgres \
  --set termkeeper_password="$TERMKEEPER_DB_PASSWORD" --set temporal_password="$TEMPORAL_DB_PASSWORD" <<'SQL'
CREATE ROLE termkeeper LOGIN PASSWORD :'termkeeper_password';
CREATE ROLE temporal LOGIN PASSWORD :'temporal_password';
CREATE DATABASE termkeeper OWNER termkeeper;
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
REVOKE CONNECT ON DATABASE termkeeper, temporal, temporal_visibility FROM PUBLIC;
SQL
