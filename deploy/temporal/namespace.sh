#!/bin/sh
# Makes the namespace of the jobs, or gives an existing one the retention. It can be run again at any time.
# TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE and NAMESPACE_RETENTION say where, which and how long.
set -eu
tries=60
until temporal operator cluster health >/dev/null 2>&1; do
  tries=$((tries - 1))
  if [ "$tries" -eq 0 ]; then
    echo "Temporal did not become healthy at $TEMPORAL_ADDRESS" >&2
    exit 1
  fi
  sleep 2
done
if temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1; then
  temporal operator namespace update --namespace "$TEMPORAL_NAMESPACE" --retention "$NAMESPACE_RETENTION"
else
  temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$NAMESPACE_RETENTION"
fi
