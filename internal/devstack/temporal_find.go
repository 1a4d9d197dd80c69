package devstack

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"go.temporal.io/sdk/temporal"
)

// temporalVersion is the Temporal CLI that is fetched when none is installed. Its server is 1.29.
const temporalVersion = "v1.5.1"

// FindTemporal returns the path of the Temporal CLI, which contains the development server. In this order: the file
// named by TERMKEEPER_TEMPORAL_BINARY; `temporal` on PATH; the one fetched earlier into the user's cache folder; a
// download of the official release; a build from source with the Go tool, which takes five to ten minutes. The last
// two say on out what they do and keep their result in the cache folder; processes that want it at the same time
// wait for the first.
func FindTemporal(ctx context.Context, out io.Writer) (string, error) {
	const override = "TERMKEEPER_TEMPORAL_BINARY"
	if path := os.Getenv(override); path != "" {
		if err := checkTemporal(ctx, path); err != nil {
			return "", fmt.Errorf("%s is not the Temporal CLI: %w", override, err)
		}
		return path, nil
	}
	if path, err := exec.LookPath("temporal"); err == nil {
		return filepath.Abs(path)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a folder to keep the Temporal CLI in: %w", err)
	}
	return fetchTemporal(ctx, filepath.Join(cache, "termkeeper"), out)
}

func fetchTemporal(ctx context.Context, folder string, out io.Writer) (string, error) {
	path := filepath.Join(folder, "temporal-"+temporalVersion)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // G301: a program, for everybody to run.
		return "", fmt.Errorf("make a folder for the Temporal CLI: %w", err)
	}
	lock, err := waitForLock(ctx, path+".lock", out)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(path); err == nil { // fetched by the process that had the lock
		return path, nil
	}
	work := filepath.Join(folder, "fetch")
	if err := errors.Join(os.RemoveAll(work), os.Mkdir(work, 0o700)); err != nil { // a killed fetch leaves its own
		return "", fmt.Errorf("make a folder for the Temporal CLI: %w", err)
	}
	defer os.RemoveAll(work)
	fetched := filepath.Join(work, "temporal")
	fmt.Fprintf(out, "The Temporal CLI is missing; downloading %s.\n", temporalVersion)
	if downloadErr := downloadTemporal(ctx, fetched); downloadErr != nil {
		if _, err := exec.LookPath("go"); err != nil {
			return "", fmt.Errorf("the Temporal CLI was not found and could not be downloaded (%w); "+
				"install it (https://docs.temporal.io/cli) or name it in TERMKEEPER_TEMPORAL_BINARY", downloadErr)
		}
		fmt.Fprintf(out, "The download is not reachable (%v); building the Temporal CLI with `go install` instead, once, in five to ten minutes.\n", downloadErr)
		if err := buildTemporal(ctx, work, out); err != nil {
			return "", fmt.Errorf("build the Temporal CLI: %w; install it (https://docs.temporal.io/cli) or name it in TERMKEEPER_TEMPORAL_BINARY", err)
		}
	}
	if err := checkTemporal(ctx, fetched); err != nil {
		return "", fmt.Errorf("the fetched Temporal CLI does not run: %w", err)
	}
	return path, os.Rename(fetched, path)
}

// waitForLock takes the lock, waiting for the process that has it.
func waitForLock(ctx context.Context, path string, out io.Writer) (*os.File, error) {
	for told := false; ; told = true {
		lock, ok, err := lockFile(path)
		if err != nil {
			return nil, err
		}
		if ok {
			return lock, nil
		}
		if !told {
			fmt.Fprintln(out, "Another process is fetching the Temporal CLI; waiting for it.")
		}
		if !pause(ctx, time.Second) {
			return nil, fmt.Errorf("wait for another process to fetch the Temporal CLI: %w", context.Cause(ctx))
		}
	}
}

// checkTemporal runs the program once, to know that it is one for this machine.
func checkTemporal(ctx context.Context, path string) error {
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("run %s --version: %w: %s", path, err, out)
	}
	return nil
}

// downloadTemporal fetches the official release the way Temporal's own Go SDK does it (testsuite.StartDevServer): the
// download service names the archive for this platform and the program in it.
func downloadTemporal(ctx context.Context, path string) error {
	const connect, whole = 15 * time.Second, 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, whole)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: connect}).DialContext,
		TLSHandshakeTimeout:   connect,
		ResponseHeaderTimeout: connect,
	}}
	defer client.CloseIdleConnections()
	query := url.Values{
		"platform": {runtime.GOOS}, "arch": {runtime.GOARCH}, "format": {"tar.gz"},
		"sdk-name": {"sdk-go"}, "sdk-version": {temporal.SDKVersion},
	}
	var release struct {
		ArchiveURL    string `json:"archiveUrl"`
		FileToExtract string `json:"fileToExtract"`
	}
	err := download(ctx, client, "https://temporal.download/cli/"+temporalVersion+"?"+query.Encode(), func(body io.Reader) error {
		return json.NewDecoder(body).Decode(&release)
	})
	if err != nil {
		return err
	}
	return download(ctx, client, release.ArchiveURL, func(body io.Reader) error {
		return extract(body, release.FileToExtract, path)
	})
}

func download(ctx context.Context, client *http.Client, address string, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", address, response.Status)
	}
	if err := read(response.Body); err != nil {
		return fmt.Errorf("read %s: %w", address, err)
	}
	return nil
}

// extract writes one file of a gzipped tar archive to path, as a program.
func extract(archive io.Reader, name, path string) error {
	unzipped, err := gzip.NewReader(archive)
	if err != nil {
		return err
	}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the archive has no file %q", name)
		}
		if err != nil {
			return err
		}
		if header.Name != name {
			continue
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755) //nolint:gosec // G302: a program, for everybody to run.
		if err != nil {
			return err
		}
		_, err = io.Copy(file, files) //nolint:gosec // G110: the official archive, bounded by the download's time limit.
		return errors.Join(err, file.Close())
	}
}

// buildTemporal builds the CLI into the folder bin, in a process group that ends with this process.
func buildTemporal(ctx context.Context, bin string, out io.Writer) error {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return err
	}
	logFile, _, err := openLog(filepath.Join(bin, "build.log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd := exec.Command(goTool, "install", "github.com/temporalio/cli/cmd/temporal@"+temporalVersion) //nolint:noctx // Stopped below, with its group.
	cmd.Dir = bin
	// The flags of the module around the caller (-mod=vendor, -modfile=…) are not for this build.
	cmd.Env = append(os.Environ(), "GOBIN="+bin, "GOFLAGS=", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = logFile, logFile
	build, err := startChild(cmd, syscall.SIGTERM)
	if err != nil {
		return err
	}
	progress := time.NewTicker(time.Minute)
	defer progress.Stop()
	for began := time.Now(); ; {
		select {
		case <-build.done:
			if build.err != nil {
				return fmt.Errorf("go install: %w: %s", build.err, lastLines(logFile.Name(), 0))
			}
			return nil
		case <-progress.C:
			fmt.Fprintf(out, "Still building the Temporal CLI (%s).\n", time.Since(began).Round(time.Second))
		case <-ctx.Done():
			// The compilers are in the same group.
			killErr := syscall.Kill(-build.process.Pid, syscall.SIGTERM)
			<-build.done
			return errors.Join(context.Cause(ctx), killErr)
		}
	}
}
