package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser = "postgres"
	// bindAttempts is how often a free port is chosen anew when somebody took it before PostgreSQL did.
	bindAttempts = 5
	// startLimit bounds the wait for PostgreSQL to answer; recovery after a crash is inside it.
	startLimit = 2 * time.Minute
)

// PostgresOptions says how StartPostgres runs PostgreSQL.
type PostgresOptions struct {
	// DataDir is a folder for PostgreSQL alone, made if missing. The cluster, the superuser's password, the log and
	// the lock are in it. Its owner may change: see StartPostgres.
	DataDir string
	// BinDir holds the programs; empty takes what FindPostgres finds, in the version that made the data.
	BinDir string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// Database is made if missing; empty makes none besides "postgres".
	Database string
	// Durable keeps every commit over a power cut. Without it (tests) commits survive the death of any process,
	// the server's too, but not of the machine.
	Durable bool
	// MaxConnections is 200 if 0.
	MaxConnections int
	// Settings are further server settings by name. They win over those set here.
	Settings map[string]string
}

// Postgres is a running private PostgreSQL.
type Postgres struct {
	server   *child
	lock     *os.File
	release  sync.Once
	bin      string
	port     int
	password string
}

// StartPostgres starts a PostgreSQL server on loopback and returns when it answers. State in DataDir is kept over
// restarts. A server left over from a killed run on the same folder is stopped first; a folder in use by a living
// process is refused. As root, PostgreSQL runs under another user (the folder's owner, else postgres, else nobody),
// who then owns the folder; the folders above it may be closed to that user on Linux.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	f, err := openFolder(o.DataDir)
	if err != nil {
		return nil, err
	}
	lock, ok, err := lockFile(f.file("lock"))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("another process is using %s; stop it first, or use another data folder", f.path)
	}
	p := &Postgres{lock: lock}
	if err := errors.Join(f.give(lock.Name()), p.start(ctx, f, o)); err != nil {
		p.unlock()
		return nil, err
	}
	if o.Database != "" {
		if err := p.createDatabase(ctx, o.Database); err != nil {
			return nil, errors.Join(err, p.Stop(context.WithoutCancel(ctx)))
		}
	}
	return p, nil
}

func (p *Postgres) start(ctx context.Context, f folder, o PostgresOptions) error {
	if err := f.stopOrphans(ctx); err != nil {
		return err
	}
	major, err := f.version()
	if err != nil {
		return err
	}
	install := postgresInstall{bin: o.BinDir}
	if o.BinDir == "" {
		if install, err = findPostgres(ctx, major); err != nil {
			return err
		}
	}
	p.bin = install.bin
	if major == 0 {
		if err := f.initialise(ctx, install, o.Durable); err != nil {
			return err
		}
	}
	if p.password, err = f.password(); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		if p.port = o.Port; p.port == 0 {
			if p.port, err = freePort(ctx); err != nil {
				return err
			}
		}
		output, err := p.launch(ctx, f, o)
		if err == nil {
			return nil
		}
		taken := strings.Contains(output, "Address already in use")
		if taken && o.Port == 0 && attempt < bindAttempts {
			continue
		}
		if taken {
			return fmt.Errorf("start PostgreSQL: port %d on %s is taken by another program; free it or choose another port", p.port, loopback)
		}
		return fmt.Errorf("start PostgreSQL in %s: %w: %s", f.path, err, output)
	}
}

// launch starts the server and waits until it answers; on error it returns what the server said last.
func (p *Postgres) launch(ctx context.Context, f folder, o PostgresOptions) (string, error) {
	logFile, from, err := openLog(f.file("postgres.log"))
	if err != nil {
		return "no output", fmt.Errorf("open the log: %w", err)
	}
	defer logFile.Close()
	if err := f.give(logFile.Name()); err != nil {
		return "no output", err
	}
	args := []string{"-D", f.inner("data"), "-p", strconv.Itoa(p.port)}
	for name, value := range o.settings() {
		args = append(args, "-c", name+"="+value)
	}
	cmd, release, err := f.command(logFile, filepath.Join(p.bin, "postgres"), args...)
	if err != nil {
		return "no output", err
	}
	defer release()
	// SIGINT is PostgreSQL's fast shutdown: when this process is killed the data is closed in order all the same.
	if p.server, err = startChild(cmd, syscall.SIGINT); err != nil {
		return "no output", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("it did not answer within %s", startLimit))
	defer cancel()
	for {
		err := p.ping(ctx)
		if err == nil {
			return "", nil
		}
		select {
		case <-p.server.done:
			return lastLines(logFile.Name(), from), p.server.err
		default:
		}
		if !pause(ctx, pollEvery) {
			stopErr := p.Stop(context.WithoutCancel(ctx))
			return lastLines(logFile.Name(), from), errors.Join(context.Cause(ctx), err, stopErr)
		}
	}
}

// settings are the server's settings: those asked for over those that fit a development machine.
func (o PostgresOptions) settings() map[string]string {
	set := map[string]string{
		"listen_addresses": loopback,
		// No socket: its path has a length limit and would need a folder both users may enter.
		"unix_socket_directories": "",
		"max_connections":         "200",
		"shared_buffers":          "256MB",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		// Compiling a query pays off for analytics alone; here it only makes first calls slow.
		"jit": "off",
	}
	if o.MaxConnections != 0 {
		set["max_connections"] = strconv.Itoa(o.MaxConnections)
	}
	if !o.Durable {
		set["fsync"] = "off"
		set["full_page_writes"] = "off"
	}
	for name, value := range o.Settings {
		set[name] = value
	}
	return set
}

func (p *Postgres) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	return errors.Join(conn.Ping(ctx), conn.Close(ctx))
}

func (p *Postgres) createDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("make the database %s: %w", name, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)", name).Scan(&exists)
	if err == nil && !exists {
		_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	}
	if err != nil {
		return fmt.Errorf("make the database %s: %w", name, err)
	}
	return nil
}

// URL returns the superuser's connection string for a database. It contains the password.
func (p *Postgres) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, p.password),
		Host: net.JoinHostPort(loopback, strconv.Itoa(p.port)), Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port returns the port on 127.0.0.1.
func (p *Postgres) Port() int { return p.port }

// BinDir returns the folder of the programs that run it, pg_dump and psql among them.
func (p *Postgres) BinDir() string { return p.bin }

// Done is closed when the server has ended, by Stop, Kill or by itself.
func (p *Postgres) Done() <-chan struct{} { return p.server.done }

// Err returns how the server ended (nil for exit code 0). It is to be called after Done is closed.
func (p *Postgres) Err() error { return p.server.err }

// Stop shuts the server down in order and waits for it: open transactions are aborted, committed data is written.
// It takes at most 30 s, or until ctx ends; then the server is killed and an error returned. Stopping a server that
// has ended does nothing.
func (p *Postgres) Stop(ctx context.Context) error {
	defer p.unlock()
	if err := p.server.stop(ctx, step{syscall.SIGINT, 25 * time.Second}, step{syscall.SIGQUIT, 5 * time.Second}); err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	return nil
}

// Kill ends the server with SIGKILL, for tests of what is left after a crash. Its backends end by themselves; the next
// StartPostgres on the folder waits for them.
func (p *Postgres) Kill() {
	p.server.kill()
	p.unlock()
}

// unlock frees the folder for another StartPostgres. Closing the file is what frees it; there is nothing to do about an error.
func (p *Postgres) unlock() { p.release.Do(func() { _ = p.lock.Close() }) }
