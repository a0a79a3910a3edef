//go:build linux

// Command suites runs the GPU suites on a machine without Go or a network. gpu_test/build appends an archive with the
// compiled suites to it, which makes it one file to copy. It writes a log for each suite and a report in Markdown.
//
//	./gpu-test                    all suites; requires a GPU: a test that skips without one fails
//	./gpu-test gpu_test endpoint  only these suites
//	./gpu-test -fake              uses the stand-in for the driver, to try the suites without a GPU
//
// The results are in the folder gpu-test-results: report.md, a log of each suite, and FACTS.md with the measured facts. The
// exit status is 1 if a suite failed, and 2 if none could be started.
package main

import (
	"archive/zip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/gpu_test/internal/machine"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the flags of the command.
type options struct {
	fake    bool
	out     string
	match   string
	timeout time.Duration
	only    []string
}

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 3 && args[0] == "pack" { // for gpu_test/build
		if err := pack(args[1], args[2]); err != nil {
			fmt.Fprintln(stderr, "pack:", err)
			return 1
		}
		return 0
	}
	var o options
	f := flag.NewFlagSet("gpu-test", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.BoolVar(&o.fake, "fake", false, "use the stand-in for the driver instead of a GPU")
	f.StringVar(&o.out, "out", "gpu-test-results", "`folder` for the report and the logs")
	f.StringVar(&o.match, "run", "", "run only the tests that match this `expression`")
	f.DurationVar(&o.timeout, "timeout", 40*time.Minute, "maximum duration of a suite")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	o.only = f.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := runSuites(ctx, o, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "gpu-test:", err)
		return 2
	}
	if failed {
		return 1
	}
	return 0
}

// runSuites unpacks the archive, runs the suites and writes the report. It reports whether a suite failed.
func runSuites(ctx context.Context, o options, stdout io.Writer) (failed bool, err error) {
	for _, name := range o.only {
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.name == name }) {
			return false, fmt.Errorf("unknown suite %q (have: %s)", name, strings.Join(suiteNames(), ", "))
		}
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return false, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return false, err
	}
	files, err := unpack(o.out)
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(files) }() // best effort: temporary files
	if _, err := os.Stat(filepath.Join(files, standIn)); o.fake && err != nil {
		return false, errors.New("the stand-in is not part of this file: it was built without a C compiler")
	}

	r := report{started: time.Now(), fake: o.fake, machine: machine.Detect(), built: readText(filepath.Join(files, "BUILT"))}
	for _, row := range r.machine.Rows() {
		fmt.Fprintf(stdout, "%-14s %s\n", row.Name, strings.Join(slices.DeleteFunc([]string{row.Value, row.Effect}, func(s string) bool { return s == "" }), ": "))
	}
	for _, s := range suites {
		if len(o.only) > 0 && !slices.Contains(o.only, s.name) || ctx.Err() != nil {
			continue
		}
		fmt.Fprintf(stdout, "==> %s\n", s.name)
		result := s.run(ctx, files, o)
		fmt.Fprintf(stdout, "    %s\n", result.summary())
		for _, t := range result.tests {
			if t.outcome == testFailed {
				fmt.Fprintf(stdout, "    FAIL %s: %s\n", t.name, firstLine(t.output))
			}
		}
		r.results = append(r.results, result)
	}
	if err := r.write(o.out); err != nil {
		return false, err
	}
	if !o.fake {
		if err := writeFacts(ctx, files, o.out); err != nil {
			fmt.Fprintf(stdout, "FACTS.md was not written: %v\n", err)
		}
	}
	fmt.Fprintf(stdout, "report: %s\n", filepath.Join(o.out, "report.md"))
	return r.failed() || ctx.Err() != nil, nil
}

// unpack extracts the archive of this program to a temporary folder from which programs can be started. Many containers
// mount /tmp without that permission. The caller removes the folder.
func unpack(out string) (dir string, err error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	archive, err := zip.OpenReader(exe) // skips the program before the archive
	if err != nil {
		return "", fmt.Errorf("this program has no suites; gpu_test/build makes the one that has: %w", err)
	}
	defer func() { _ = archive.Close() }() // best effort: it was only read
	for _, parent := range []string{os.TempDir(), "/dev/shm", out} {
		if dir, err = unpackInto(parent, &archive.Reader); err == nil {
			return dir, nil
		}
	}
	return "", err
}

func unpackInto(parent string, archive *zip.Reader) (_ string, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(parent, &stat); err != nil {
		return "", &os.PathError{Op: "statfs", Path: parent, Err: err}
	}
	if stat.Flags&unix.ST_NOEXEC != 0 {
		return "", fmt.Errorf("%s is mounted without permission to start programs: set TMPDIR to another folder", parent)
	}
	dir, err := os.MkdirTemp(parent, "gpu-test-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir) // best effort: the error is reported
		}
	}()
	if err := os.CopyFS(dir, archive); err != nil {
		return "", err
	}
	// CopyFS keeps only the execute bits that the archive has; programs need them.
	return dir, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chmod(path, 0o755)
	})
}

func suiteNames() (names []string) {
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// readText returns the content of a file, or nothing if it cannot be read.
func readText(path string) string {
	data, _ := os.ReadFile(path) // best effort
	return string(data)
}
