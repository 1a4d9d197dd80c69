// Package temporalclient connects to Temporal as the standard TEMPORAL_* variables say, and reads and steers the
// schedules of the jobs for those who are not workers: the API, the console, the command line.
package temporalclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.uber.org/zap"
)

// Options say how to connect.
type Options struct {
	// Environ is a list of NAME=value with the standard variables of the Temporal SDK: TEMPORAL_ADDRESS,
	// TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_TLS*, TEMPORAL_PROFILE, TEMPORAL_CONFIG_FILE. The last entry of a
	// name counts, and an empty value as unset.
	Environ []string
	// Identity names this process in Temporal's histories and poller lists.
	Identity string
	Logger   *zap.Logger
	// Metrics takes the SDK's own metrics; nil takes none. See NewMetrics.
	Metrics client.MetricsHandler
}

// Config is what the environment says about Temporal. Only loopback may go without a name for the namespace: on a
// server that several environments share, "default" would be a namespace that nobody chose.
func (o Options) Config() (client.Options, error) {
	config, err := envconfig.LoadClientOptions(envconfig.LoadClientOptionsRequest{EnvLookup: lookup(o.Environ)})
	if err != nil {
		return config, fmt.Errorf("reading the TEMPORAL_ variables: %w", err)
	}
	if config.HostPort == "" {
		config.HostPort = client.DefaultHostPort
	}
	if config.Namespace == "" {
		if !isLoopback(config.HostPort) {
			return config, fmt.Errorf("TEMPORAL_NAMESPACE is not set for the server at %s: name the namespace of this environment", config.HostPort)
		}
		config.Namespace = client.DefaultNamespace
	}
	config.Identity = o.Identity
	config.Logger = NewLogger(o.Logger)
	config.MetricsHandler = o.Metrics
	return config, nil
}

// Client is a connection with the name of its namespace, which the SDK's client keeps to itself.
type Client struct {
	client.Client
	Namespace string
}

// Lazy makes a client that connects at its first call, so that a process can start while Temporal is down.
func Lazy(o Options) (Client, error) {
	config, err := o.Config()
	if err != nil {
		return Client{}, err
	}
	c, err := client.NewLazyClient(config)
	if err != nil {
		return Client{}, fmt.Errorf("setting up the Temporal client: %w", err)
	}
	return Client{Client: c, Namespace: config.Namespace}, nil
}

// Errors of calls to Temporal that callers tell apart.
var (
	ErrUnavailable = errors.New("Temporal cannot be reached; the jobs stand still until it can, access checks do not need it") //nolint:staticcheck // ST1005: a product name is written with a capital.
	ErrNoSchedule  = errors.New("there is no such schedule; `termkeeper schedules apply` makes it")
)

// Unavailable reports whether the error says that the server did not answer, as opposed to what it answered. One that has
// too much to do says so and answers nothing else.
func Unavailable(err error) bool {
	var unavailable *serviceerror.Unavailable
	var deadline *serviceerror.DeadlineExceeded
	var canceled *serviceerror.Canceled
	var exhausted *serviceerror.ResourceExhausted
	return errors.As(err, &exhausted) || errors.As(err, &unavailable) || errors.As(err, &deadline) || errors.As(err, &canceled) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable)
}

func isLoopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// lookup is a list of NAME=value as envconfig asks for it.
type lookup []string

// LookupEnv is the last value of a variable; an empty one is none.
func (l lookup) LookupEnv(name string) (string, bool) {
	for _, entry := range slices.Backward(l) {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			return value, value != ""
		}
	}
	return "", false
}

// Environ is the whole list.
func (l lookup) Environ() []string { return l }
