//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// suite is a test binary of the archive.
type suite struct {
	name   string
	folder string   // of the binary, in which it is started
	env    []string // {} is the folder of the archive
	about  string
}

// standIn is the path of the stand-in for the driver in the archive.
const standIn = "fake/libcuda.so.1"

// onDevice has tests of endpoint use the memory of the first GPU.
var onDevice = []string{"ENDPOINT_TEST_DEVICE=cuda:0"}

// suites are the suites in the order in which they run. The last one needs no GPU.
var suites = []suite{
	{name: "gpu_test", folder: ".", about: "devices, kernels, typed calls, sharing between processes, and the facts"},
	{name: "endpoint", folder: "endpoint", env: onDevice, about: "server and clients with memory of the GPU"},
	{name: "node", folder: "endpoint/node", env: onDevice, about: "nodes with memory of the GPU"},
	{name: "session", folder: "endpoint/internal/session", env: onDevice, about: "connections, with memory of the GPU"},
	{name: "client", folder: "endpoint/internal/client", env: onDevice, about: "leases and references to memory of the GPU"},
	{name: "engine", folder: "endpoint/internal/engine", env: onDevice, about: "calls and tasks with memory of the GPU"},
	{name: "transfer", folder: "endpoint/internal/transfer", env: onDevice, about: "export, import and reuse of memory of the GPU"},
	{name: "offering", folder: "endpoint/internal/offering", env: onDevice, about: "functions of workers with memory of the GPU"},
	{name: "server", folder: "endpoint/internal/server", env: onDevice, about: "operations on memory of the GPU"},
	{name: "cu", folder: "driver/cuda/cu", env: []string{"CU_TEST_LIBRARIES={}/driver/cuda/cu/libraries"}, about: "calls into C on this processor"},
}

// outcome is the outcome of a test.
type outcome string

const (
	testPassed  outcome = "PASS"
	testSkipped outcome = "SKIP"
	testFailed  outcome = "FAIL"
)

// test is a test that did not pass, with the lines that it printed.
type test struct {
	name    string
	outcome outcome
	output  []string
}

// result is the result of a suite.
type result struct {
	suite   suite
	err     error // of the process
	seconds float64
	passed  int
	tests   []test // that did not pass
	facts   []string
	tail    []string // last lines of the log
}

// readsSources matches the tests that need the sources of the repository.
const readsSources = "^(TestEverythingIsDocumented|TestQuestionsNameTests)$"

// run runs the suite and parses its log, which it writes to the folder of the results.
func (s suite) run(ctx context.Context, files string, o options) result {
	r := result{suite: s}
	log, err := os.Create(filepath.Join(o.out, s.name+".log"))
	if err != nil {
		r.err = err
		return r
	}
	defer log.Close()
	dir := filepath.Join(files, s.folder)
	args := []string{"-test.v", "-test.count=1", "-test.timeout=" + o.timeout.String(), "-test.skip=" + readsSources}
	if o.match != "" {
		args = append(args, "-test.run="+o.match)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, s.name+".test"), args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, s.environment(files, o.fake), log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	begin := time.Now()
	r.err = cmd.Run()
	if errors.Is(r.err, os.ErrNotExist) { // the dynamic loader is missing
		r.err = fmt.Errorf("%w: the binary needs glibc", r.err)
	}
	r.seconds = time.Since(begin).Seconds()
	r.parse(readText(log.Name()))
	return r
}

// environment returns the variables of the suite.
func (s suite) environment(files string, fake bool) []string {
	env := append(os.Environ(), "SHAREDTENSOR_PROGRAM="+filepath.Join(files, "sharedtensor"), "SHAREDTENSOR_TESTDATA="+filepath.Join(files, "testdata"))
	for _, v := range []struct{ name, value string }{{"PATH", "/usr/bin:/bin"}, {"HOME", os.TempDir()}} {
		if os.Getenv(v.name) == "" {
			env = append(env, v.name+"="+v.value)
		}
	}
	if fake {
		env = append(env, "GPU_TEST=fake", "SHAREDTENSOR_LIBCUDA="+filepath.Join(files, standIn), fmt.Sprintf("FAKECUDA_MEMORY=%d", 768<<20))
	} else {
		env = append(env, "GPU_TEST=require")
	}
	for _, v := range s.env {
		env = append(env, strings.ReplaceAll(v, "{}", files))
	}
	return env
}

var (
	running = regexp.MustCompile(`^=== (?:RUN|CONT|NAME) +(\S+)`)
	ended   = regexp.MustCompile(`^ *--- (PASS|SKIP|FAIL): (\S+)`)
)

// tailLines is the number of lines that the report quotes of a log that ends without the end of a test.
const tailLines = 40

// parse reads a log of a test binary with -test.v.
func (r *result) parse(log string) {
	lines := bufio.NewScanner(strings.NewReader(log))
	lines.Buffer(nil, 1<<20)
	output := map[string][]string{}
	current := ""
	for lines.Scan() {
		line := lines.Text()
		if r.tail = append(r.tail, line); len(r.tail) > tailLines {
			r.tail = r.tail[1:]
		}
		if m := running.FindStringSubmatch(line); m != nil {
			current = m[1]
			continue
		}
		if strings.HasPrefix(line, "=== ") { // a test pauses
			continue
		}
		if m := ended.FindStringSubmatch(line); m != nil {
			if outcome(m[1]) == testPassed {
				r.passed += top(m[2])
			} else {
				r.tests = append(r.tests, test{m[2], outcome(m[1]), output[m[2]]})
			}
			delete(output, m[2])
			continue
		}
		if fact, ok := strings.CutPrefix(line, "FACT "); ok {
			r.facts = append(r.facts, fact)
			continue
		}
		if strings.TrimSpace(line) != "" {
			output[current] = append(output[current], line)
		}
	}
}

// top returns 1 for a test and 0 for a part of one.
func top(name string) int {
	if strings.Contains(name, "/") {
		return 0
	}
	return 1
}

// count returns the number of tests, without their parts, with the outcome.
func (r result) count(o outcome) (n int) {
	if o == testPassed {
		return r.passed
	}
	for _, t := range r.tests {
		if t.outcome == o {
			n += top(t.name)
		}
	}
	return n
}

// state returns ok, FAILED, or the reason why the suite ended early.
func (r result) state() string {
	var exit *exec.ExitError
	switch {
	case r.err == nil:
		return "ok"
	case errors.As(r.err, &exit) && r.count(testFailed) > 0:
		return "FAILED"
	}
	return "FAILED: " + r.err.Error()
}

func (r result) summary() string {
	return fmt.Sprintf("%s: %d passed, %d skipped, %d failed, %.0f s", r.state(), r.passed, r.count(testSkipped), r.count(testFailed), r.seconds)
}

// writeFacts writes FACTS.md with the facts of the logs to the folder of the results.
func writeFacts(ctx context.Context, files, out string) error {
	log := filepath.Join(out, "gpu_test.log")
	if _, err := os.Stat(log); err != nil {
		return errors.New("the suite gpu_test did not run")
	}
	path := filepath.Join(out, "FACTS.md")
	if err := os.WriteFile(path, []byte(readText(filepath.Join(files, "FACTS.md"))), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(files, "gpu_test.test"), "-test.run=^TestFactsFile$", "-facts="+log, "-facts-file="+path)
	cmd.Dir = files
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", errors.Join(err, os.Remove(path)), bytes.TrimSpace(text))
	}
	return nil
}
