// Package deploy checks what the program is deployed with: the Dockerfile and the compose file. No engine is needed: the
// steps of the Dockerfile are done by hand, and the compose file is read as Docker Compose reads it.
package deploy

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/stretchr/testify/require"
)

const (
	repository = ".."
	// What the image says of itself, if it is built as the tests do.
	builtVersion, builtCommit = "1.2.3-of-the-tests", "0123456789abcdef"
	// patience only bounds a test that fails.
	patience = 10 * time.Minute
)

// built is the image made by hand. TestMain sets it once, before any test runs.
var built image

// image is what the Dockerfile describes, with its program built.
type image struct {
	stages []instructions.Stage
	source string // the folder that the build stage worked in
	binary string
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	const failed = 1
	root, err := os.MkdirTemp("", "termkeeper-image-")
	if err == nil {
		defer os.RemoveAll(root)
		built, err = makeImage(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "deploy:", err)
		return failed
	}
	return m.Run()
}

// makeImage does the steps of the first stage below root: root is its file system.
func makeImage(root string) (image, error) {
	made := image{}
	stages, err := readDockerfile()
	if err != nil {
		return made, err
	}
	made.stages = stages
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dir := root
	environ := append(os.Environ(), "GOFLAGS=", "GOWORK=off", "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH)
	for _, command := range stages[0].Commands {
		switch c := command.(type) {
		case *instructions.WorkdirCommand:
			dir = filepath.Join(root, c.Path)
			err = os.MkdirAll(dir, 0o755)
		case *instructions.CopyCommand:
			err = copyContext(c.SourcePaths, dir)
		case *instructions.ArgCommand:
			for _, arg := range c.Args {
				switch arg.Key {
				case "VERSION":
					environ = append(environ, "VERSION="+builtVersion)
				case "COMMIT":
					environ = append(environ, "COMMIT="+builtCommit)
				}
			}
		case *instructions.RunCommand:
			cmd := exec.CommandContext(ctx, "sh", "-c", strings.Join(c.CmdLine, " "))
			cmd.Dir, cmd.Env = dir, environ
			var out []byte
			if out, err = cmd.CombinedOutput(); err != nil {
				err = fmt.Errorf("%v: %w\n%s", c.CmdLine, err, out)
			}
		default:
			err = fmt.Errorf("the tests do not know how to do %q by hand", command.Name())
		}
		if err != nil {
			return made, fmt.Errorf("doing the Dockerfile's steps: %w", err)
		}
	}
	made.source, made.binary = dir, filepath.Join(dir, "bin", "termkeeper")
	_, err = os.Stat(made.binary)
	return made, err
}

func readDockerfile() ([]instructions.Stage, error) {
	text, err := os.ReadFile(filepath.Join(repository, "Dockerfile"))
	if err != nil {
		return nil, err
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("reading the Dockerfile: %w", err)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the Dockerfile: %w", err)
	}
	return stages, nil
}

// copyContext copies what .dockerignore lets through of the paths.
func copyContext(paths []string, to string) error {
	text, err := os.Open(filepath.Join(repository, ".dockerignore"))
	if err != nil {
		return err
	}
	defer text.Close()
	patterns, err := ignorefile.ReadAll(text)
	if err != nil {
		return fmt.Errorf("reading .dockerignore: %w", err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		return fmt.Errorf("reading .dockerignore: %w", err)
	}
	return filepath.WalkDir(repository, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(repository, file)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == ".git" || strings.HasPrefix(name, ".termkeeper") {
				return fs.SkipDir // big, and left out as TestBuildContext shows
			}
			return nil
		}
		if leave, err := ignored.MatchesOrParentMatches(name); err != nil || leave {
			return err
		}
		if !slices.Contains(paths, ".") && !slices.Contains(paths, name) {
			return nil
		}
		return copyFile(file, filepath.Join(to, name), 0o644)
	})
}

func copyFile(from, to string, mode os.FileMode) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, mode)
}

// only returns the one instruction of a kind in the last stage.
func only[T instructions.Command](t *testing.T) T {
	t.Helper()
	var found []T
	for _, command := range built.stages[len(built.stages)-1].Commands {
		if c, ok := command.(T); ok {
			found = append(found, c)
		}
	}
	require.Len(t, found, 1)
	return found[0]
}

func TestImageHasNothingButTheProgram(t *testing.T) {
	t.Parallel()
	require.Len(t, built.stages, 2)
	for _, stage := range built.stages[:1] {
		name, tag, tagged := strings.Cut(stage.BaseName, ":")
		require.True(t, tagged, "%s has no version", name)
		require.NotContains(t, []string{"", "latest", "stable"}, tag)
	}
	module, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	require.NoError(t, err)
	require.Contains(t, string(module), "\ngo "+strings.TrimPrefix(strings.Split(built.stages[0].BaseName, "-")[0], "golang:")+"\n",
		"the image is built with the Go of go.mod")
	require.Equal(t, "scratch", built.stages[1].BaseName, "no shell, no package manager")

	require.Regexp(t, `^[1-9][0-9]*:[1-9][0-9]*$`, only[*instructions.UserCommand](t).User, "a number that is not root's")
	require.Equal(t, "SIGTERM", only[*instructions.StopSignalCommand](t).Signal)
	require.Equal(t, []string{"8080", "9090"}, only[*instructions.ExposeCommand](t).Ports)
	require.Equal(t, []string{"/termkeeper"}, only[*instructions.EntrypointCommand](t).CmdLine)
	require.False(t, only[*instructions.EntrypointCommand](t).PrependShell, "there is no shell")
	require.Equal(t, []string{"CMD", "/termkeeper", "healthcheck"}, only[*instructions.HealthCheckCommand](t).Health.Test)

	var copied []string
	for _, command := range built.stages[1].Commands {
		if c, ok := command.(*instructions.CopyCommand); ok {
			require.Equal(t, "build", c.From)
			copied = append(copied, c.DestPath)
		}
	}
	require.Equal(t, []string{"/etc/ssl/certs/ca-certificates.crt", "/termkeeper"}, copied)
}

// No secret, no history and no test goes to the machine that builds.
func TestBuildContext(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, copyContext([]string{"."}, folder))
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"activities", "api", "cmd", "go.mod", "go.sum", "internal", "migrations", "worker", "workflows"}, names)
	require.NoError(t, filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(file, "_test.go") || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".env")) {
			err = fmt.Errorf("%s goes with the build", file)
		}
		return err
	}))
	text, err := os.ReadFile(filepath.Join(repository, ".dockerignore"))
	require.NoError(t, err)
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	require.NoError(t, err)
	ignored, err := patternmatcher.New(patterns)
	require.NoError(t, err)
	for _, name := range []string{".git/config", ".env", ".termkeeper/dev.json", "bin/termkeeper", "e2e/main_test.go", "cmd/.env.example/x_test.go"} {
		leave, err := ignored.MatchesOrParentMatches(name)
		require.NoError(t, err)
		require.True(t, leave, name)
	}
}

func TestImageSaysWhatItIs(t *testing.T) {
	t.Parallel()
	out := run(t, nil, "version")
	require.Zero(t, out.code, out.stderr)
	require.Contains(t, out.stdout, builtVersion)
	require.Contains(t, out.stdout, builtCommit)
}

// The image has no time zones of its own.
func TestProgramHasTheTimeZones(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(built.binary)
	require.NoError(t, err)
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll"} {
		require.True(t, bytes.Contains(text, []byte(zone)), zone)
	}
	require.False(t, bytes.Contains(text, []byte(repository+"/cmd/termkeeper")), "no path of the machine that built it")
	require.False(t, bytes.Contains(text, []byte(built.source)), "no path of the machine that built it")
}

// said is what a finished command has said.
type said struct {
	code           int
	stdout, stderr string
}

// run runs the program of the image to its end, with nothing in its environment but what is given.
func run(t *testing.T, environ []string, args ...string) said {
	t.Helper()
	return finish(t, exec.CommandContext(t.Context(), built.binary, args...), environ)
}

func finish(t *testing.T, cmd *exec.Cmd, environ []string) said {
	t.Helper()
	cmd.Env = append([]string{}, environ...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
		require.NoError(t, err, stderr.String())
	}
	return said{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}
