# syntax=docker/dockerfile:1
# The image has one static binary and the certificates of the public authorities: no shell, no package, no other user.
# Base images are pinned by version. To pin them by content too, add the digest that `docker buildx imagetools inspect`
# shows: golang:1.26.8-trixie@sha256:…
#
#   docker build --build-arg VERSION=1.2.3 --build-arg COMMIT="$(git rev-parse HEAD)" -t termkeeper:1.2.3 .

FROM --platform=$BUILDPLATFORM golang:1.26.8-trixie AS build
WORKDIR /src
# The modules change more seldom than the code: this layer is kept.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
ARG COMMIT=unknown
ARG TARGETOS TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w -X main.linkedVersion=$VERSION -X main.linkedCommit=$COMMIT" -o bin/termkeeper ./cmd/termkeeper

FROM scratch
# Stripe's API, mail servers and Temporal Cloud are reached by TLS. Go looks for the bundle at this path; the time zones
# are in the binary.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/bin/termkeeper /termkeeper
# By number, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 65532:65532
# A container is reached from outside of itself; whoever publishes the ports decides from where.
ENV TERMKEEPER_HTTP_ADDR=0.0.0.0:8080 TERMKEEPER_OPS_ADDR=0.0.0.0:9090
EXPOSE 8080 9090
# SIGTERM stops in order: an API within 20 seconds, a worker within 30. Give the container longer than that to stop.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["/termkeeper", "healthcheck"]
ENTRYPOINT ["/termkeeper"]
CMD ["help"]
