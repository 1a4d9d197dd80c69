package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
)

// chapter is the text of docs/operations.md from a heading to the next one of its kind.
func chapter(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "\n"+heading+"\n")
	require.True(t, found, heading)
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// fenced is the first fenced text of a language in a chapter.
func fenced(t *testing.T, language, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(chapter(t, heading), "\n```"+language+"\n")
	require.True(t, found, "%s has no %s", heading, language)
	text, _, found := strings.Cut(rest, "\n```")
	require.True(t, found)
	return text
}

// recipe is one command of the cookbook, with the question that it answers.
type recipe struct{ question, command string }

// cookbook lists the commands of a CLI.
func cookbook(t *testing.T, program string) []recipe {
	t.Helper()
	var list []recipe
	question := ""
	for line := range strings.Lines(strings.ReplaceAll(chapter(t, "## CLI cookbook"), "\\\n", "")) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "### "):
			question = strings.TrimPrefix(line, "### ")
		case strings.HasPrefix(line, program+" "):
			list = append(list, recipe{question, line})
		}
	}
	return list
}

// Both CLIs answer the same questions.
func TestCookbookIsWhole(t *testing.T) {
	t.Parallel()
	questions := func(program string) (list []string) {
		for _, r := range cookbook(t, program) {
			list = append(list, r.question)
		}
		return list
	}
	require.Len(t, questions("temporal"), 12)
	require.Equal(t, questions("temporal"), questions("tctl"))
}

// Every command of the cookbook does what it says, on a system at work. `make tctl-check` does the same with the old CLI.
func TestCookbook(t *testing.T) {
	t.Parallel()
	for name, binary := range clis(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			require.NoError(t, os.Symlink(binary, filepath.Join(folder, name)))
			s := newSystem(t)
			temporal := s.useTemporal(t)
			s.startWorker(t, "TERMKEEPER_INSTANCE_ID="+cookID)
			cook := kitchen{folder: folder, environ: s.environ}
			for _, variable := range s.environ {
				if rest, ok := strings.CutPrefix(variable, "TEMPORAL_"); ok {
					cook.environ = append(cook.environ, "TEMPORAL_CLI_"+rest)
				}
			}
			s.awaitWholeRun(t, "subscription-expiry")
			var out string
			for _, r := range cookbook(t, name) {
				status := "Completed"
				if strings.Contains(r.command, " terminate ") {
					status = "Running"
				}
				if strings.Contains(r.command, " trigger ") {
					s.awaitMiddleOfInterval(t)
				}
				await(t, r.command, func() error {
					list, err := temporal.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{
						PageSize: 1, Query: "WorkflowType = 'ExpireSubscriptions' AND ExecutionStatus = '" + status + "'",
					})
					if err != nil || len(list.GetExecutions()) == 0 {
						return errors.Join(err, errors.New("no such run"))
					}
					out, err = cook.do(t.Context(), r.command, "RUN="+list.GetExecutions()[0].GetExecution().GetWorkflowId())
					return err
				})
				cook.taste(t, s, r, out)
			}
		})
	}
}

// cookID is the name of the worker.
const cookID = "the-worker-of-the-cookbook"

// awaitMiddleOfInterval waits until the last tick is more than a second ago and the next one is some seconds away. The
// server names a run by its second: in that of a tick it takes a trigger for the tick that it has started already.
func (s *system) awaitMiddleOfInterval(t *testing.T) {
	t.Helper()
	await(t, "the middle of an interval", func() error {
		if s.count(t, `SELECT count(*) FROM job_runs WHERE job = 'subscription-expiry' AND finished_at IS NULL
			AND clock_timestamp() BETWEEN scheduled_at + interval '2 seconds' AND scheduled_at + interval '6 seconds'`) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// clis are the CLIs by name. The old one takes minutes to build, so it is there only where it was asked for.
func clis(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"temporal": temporalBinary(t)}
	if tctl := os.Getenv("TERMKEEPER_TCTL_BINARY"); tctl != "" {
		all["tctl"] = tctl
	}
	return all
}

// kitchen is a shell with nothing but one CLI and the environment that the cookbook asks for.
type kitchen struct {
	folder  string
	environ []string
}

func (k kitchen) do(ctx context.Context, command string, environ ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(append([]string{"PATH=" + k.folder + ":" + os.Getenv("PATH"), "HOME=" + k.folder}, k.environ...), environ...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return string(out), nil
}

// taste demands that a command had its effect.
func (k kitchen) taste(t *testing.T, s *system, r recipe, out string) {
	t.Helper()
	has := func(parts ...string) {
		t.Helper()
		for _, part := range parts {
			require.Contains(t, out, part, r.command)
		}
	}
	scheduled := func(part string) {
		t.Helper()
		require.Contains(t, s.program().reaching(t, "schedules", "list"), part, r.command)
	}
	switch {
	case strings.Contains(r.command, " schedule list"):
		has("subscription-expiry", "webhook-apply", "outbox-delivery")
	case strings.Contains(r.command, " schedule describe"):
		has("ExpireSubscriptions")
	case strings.Contains(r.command, " trigger "):
		await(t, "a run by hand", func() error { return s.runs(t, "subscription-expiry", "manual", 1) })
	case strings.Contains(r.command, " backfill "):
		await(t, "runs of the past", func() error { return s.runs(t, "subscription-expiry", "backfill", 3) })
	case strings.Contains(r.command, " --pause "):
		scheduled("moving the database")
	case strings.Contains(r.command, " --unpause "):
		scheduled("moved")
	case strings.Contains(r.command, " show "):
		has("WorkflowExecutionStarted", "WorkflowExecutionCompleted")
	case strings.Contains(r.command, "describe --task"):
		has(cookID) // whoever polls
	case strings.Contains(r.command, " reset "), strings.Contains(r.command, " terminate "), strings.Contains(r.command, " list "):
		// A list may be empty; a reset and a termination say by their exit code whether they were done.
	default:
		require.Fail(t, "nobody tastes this", r.command)
	}
}
