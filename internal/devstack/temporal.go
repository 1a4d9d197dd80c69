package devstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Retention is how long the namespace keeps the history of a finished workflow: the shortest the server takes. The
// jobs finish tens of workflows a minute; with the usual day the file would hold all of them.
const Retention = time.Hour

// TemporalOptions says how StartTemporal runs Temporal's development server.
type TemporalOptions struct {
	// Binary is the Temporal CLI; see FindTemporal.
	Binary string
	// DBFile keeps the server's state over restarts; its folder must exist. Empty keeps it in memory.
	DBFile string
	// Port of the gRPC API on 127.0.0.1; 0 takes a free one.
	Port int
	// UIAddress is where the Web UI listens, host:port; no host is 127.0.0.1, port 0 a free one. Empty runs no UI.
	UIAddress string
	// Namespace is made if missing, with the history retention Retention.
	Namespace string
	// LogFile takes the server's output, warnings and errors. Empty drops it.
	LogFile string
}

// Temporal is a running Temporal development server.
type Temporal struct {
	server    *child
	lock      *os.File // nil without a file
	release   sync.Once
	port      int
	uiAddress string
	namespace string
}

// StartTemporal starts Temporal's development server on loopback and returns when it is healthy and answers for the
// namespace. A server left over from a killed run on the same file is stopped first; a file in use by a living process
// is refused. To come back on the same port with the same state, give the port and file of the one before.
func StartTemporal(ctx context.Context, o TemporalOptions) (*Temporal, error) {
	t := &Temporal{namespace: o.Namespace}
	if o.DBFile != "" {
		file, err := filepath.Abs(o.DBFile)
		if err != nil {
			return nil, err
		}
		o.DBFile = file
		lock, ok, err := lockFile(file + ".lock")
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("another process is using %s; stop it first, or use another data folder", file)
		}
		t.lock = lock
		if err := stopProcesses(ctx, func(p process) bool {
			return strings.Contains(p.command+" ", " start-dev ") && strings.Contains(p.command+" ", " "+file+" ")
		}); err != nil {
			t.unlock()
			return nil, err
		}
	}
	if err := t.start(ctx, o); err != nil {
		t.unlock()
		return nil, err
	}
	return t, nil
}

func (t *Temporal) start(ctx context.Context, o TemporalOptions) error {
	uiHost, uiPort := "", 0
	if o.UIAddress != "" {
		host, port, err := net.SplitHostPort(o.UIAddress)
		if err == nil {
			uiHost = cmp.Or(host, loopback)
			uiPort, err = strconv.Atoi(port)
		}
		if err != nil {
			return fmt.Errorf("the address of the Temporal Web UI: %w", err)
		}
	}
	for attempt := 1; ; attempt++ {
		var err error
		if t.port = o.Port; t.port == 0 {
			if t.port, err = freePort(ctx); err != nil {
				return err
			}
		}
		args := o.arguments(t.port)
		if o.UIAddress == "" {
			args = append(args, "--headless")
		} else {
			port := uiPort
			if port == 0 {
				if port, err = freePort(ctx); err != nil {
					return err
				}
			}
			t.uiAddress = net.JoinHostPort(uiHost, strconv.Itoa(port))
			args = append(args, "--ui-ip", uiHost, "--ui-port", strconv.Itoa(port))
		}
		output, err := t.launch(ctx, o, args)
		if err == nil {
			return nil
		}
		taken := strings.Contains(output, "address already in use")
		if taken && attempt < bindAttempts && (o.Port == 0 || o.UIAddress != "" && uiPort == 0) {
			continue
		}
		return fmt.Errorf("start the Temporal development server on port %d: %w: %s", t.port, err, output)
	}
}

// arguments are those of `temporal` but for the UI. The user's own CLI configuration and environment are kept out.
func (o TemporalOptions) arguments(port int) []string {
	args := []string{
		"server", "start-dev", "--disable-config-file", "--disable-config-env",
		"--ip", loopback, "--port", strconv.Itoa(port), "--log-level", "warn",
		// More partitions only cost on one machine: throughput was 2.4 times higher with one.
		"--dynamic-config-value", "matching.numTaskqueueReadPartitions=1",
		"--dynamic-config-value", "matching.numTaskqueueWritePartitions=1",
		// An activity goes to the worker with the answer that asked for it: half the time from a run's start to its work.
		"--dynamic-config-value", "system.enableActivityEagerExecution=true",
		"--dynamic-config-value", "frontend.enableServerVersionCheck=false",
		// Histories are deleted within minutes after the retention, not spread over half an hour more.
		"--dynamic-config-value", `history.retentionTimerJitterDuration="1m"`,
	}
	if o.DBFile != "" {
		args = append(args, "--db-filename", o.DBFile)
	}
	return args
}

// launch starts the server and waits until it is ready; on error it returns what the server said last.
func (t *Temporal) launch(ctx context.Context, o TemporalOptions, args []string) (string, error) {
	cmd := exec.Command(o.Binary, args...) //nolint:noctx // Stopping is ours to do, in order, and not by SIGKILL.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
	output := func() string { return "its output was dropped" }
	if o.LogFile != "" {
		logFile, from, err := openLog(o.LogFile)
		if err != nil {
			return output(), fmt.Errorf("open the log: %w", err)
		}
		defer logFile.Close()
		cmd.Stdout, cmd.Stderr = logFile, logFile
		output = func() string { return lastLines(o.LogFile, from) }
	}
	var err error
	// SQLite's journal makes a kill harmless, and a killed run leaves nothing to wait for.
	if t.server, err = startChild(cmd, syscall.SIGKILL); err != nil {
		return output(), err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("it was not ready within %s", startLimit))
	defer cancel()
	conn, err := grpc.NewClient(t.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.server.kill()
		return output(), err
	}
	defer conn.Close()
	for {
		err := t.ready(ctx, conn)
		if err == nil {
			return "", nil
		}
		select {
		case <-t.server.done:
			return output(), fmt.Errorf("it ended: %w", t.server.err)
		default:
		}
		if !pause(ctx, pollEvery) {
			t.server.kill()
			return output(), errors.Join(context.Cause(ctx), err)
		}
	}
}

// ready checks that the server is up, makes the namespace and checks that the server answers for it.
func (t *Temporal) ready(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	const frontend = "temporal.api.workflowservice.v1.WorkflowService"
	health, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: frontend})
	if err != nil {
		return err
	}
	if health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("its health is %s", health.GetStatus())
	}
	service := workflowservice.NewWorkflowServiceClient(conn)
	if err := EnsureNamespace(ctx, service, t.namespace); err != nil {
		return err
	}
	_, err = service.ListWorkflowExecutions(ctx, &workflowservice.ListWorkflowExecutionsRequest{Namespace: t.namespace, PageSize: 1})
	return err
}

// EnsureNamespace makes a namespace with the history retention Retention, or gives an existing one that retention.
func EnsureNamespace(ctx context.Context, service workflowservice.WorkflowServiceClient, name string) error {
	_, err := service.RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace: name, WorkflowExecutionRetentionPeriod: durationpb.New(Retention),
	})
	if err == nil {
		return nil
	}
	if status.Code(err) != codes.AlreadyExists {
		return fmt.Errorf("make the namespace %s: %w", name, err)
	}
	described, err := service.DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: name})
	if err != nil {
		return fmt.Errorf("read the namespace %s: %w", name, err)
	}
	if described.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration() == Retention {
		return nil
	}
	_, err = service.UpdateNamespace(ctx, &workflowservice.UpdateNamespaceRequest{
		Namespace: name, Config: &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: durationpb.New(Retention)},
	})
	if err != nil {
		return fmt.Errorf("shorten the history retention of the namespace %s: %w", name, err)
	}
	return nil
}

// Address returns the host and port of the gRPC API.
func (t *Temporal) Address() string { return net.JoinHostPort(loopback, strconv.Itoa(t.port)) }

// Port returns the port of the gRPC API on 127.0.0.1.
func (t *Temporal) Port() int { return t.port }

// UIURL returns the address of the Web UI, empty when it has none.
func (t *Temporal) UIURL() string {
	if t.uiAddress == "" {
		return ""
	}
	return "http://" + t.uiAddress
}

// Namespace returns the name of the namespace.
func (t *Temporal) Namespace() string { return t.namespace }

// Done is closed when the server has ended, by Stop, Kill or by itself.
func (t *Temporal) Done() <-chan struct{} { return t.server.done }

// Err returns how the server ended (nil for exit code 0). It is to be called after Done is closed.
func (t *Temporal) Err() error { return t.server.err }

// Stop shuts the server down in order and waits for it: 2 s as a rule, over 10 s on a busy machine, at most 30 s or
// until ctx ends; then the server is killed and an error returned. Stopping a server that has ended does nothing.
func (t *Temporal) Stop(ctx context.Context) error {
	defer t.unlock()
	if err := t.server.stop(ctx, step{syscall.SIGTERM, 30 * time.Second}); err != nil {
		return fmt.Errorf("stop Temporal: %w", err)
	}
	return nil
}

// Kill ends the server with SIGKILL, for tests of what is left after a crash. A file keeps what was acknowledged.
func (t *Temporal) Kill() {
	t.server.kill()
	t.unlock()
}

// unlock frees the file for another StartTemporal. Closing the lock is what frees it; there is nothing to do about an error.
func (t *Temporal) unlock() {
	if t.lock != nil {
		t.release.Do(func() { _ = t.lock.Close() })
	}
}
