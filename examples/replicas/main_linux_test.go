package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stubEnv makes the test binary a replica without a model. Its value is the directory of the files that the test and the
// replica exchange.
const stubEnv = "REPLICAS_TEST_STUB"

// built is the folder with the programs, and a descriptor of it.
var built struct {
	once   sync.Once
	folder string
	output []byte
	err    error
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(stubEnv); dir != "" {
		stub(dir, os.Args[1])
		return
	}
	code := m.Run()
	if built.folder != "" {
		os.RemoveAll(built.folder)
	}
	os.Exit(code)
}

// program returns the path of a built program.
func program(t *testing.T, name string) string {
	t.Helper()
	built.once.Do(func() {
		built.folder, built.err = os.MkdirTemp("", "st")
		if built.err == nil {
			build := exec.Command("go", "build", "-o", built.folder+"/", ".", "./replica", "../../cmd/sharedtensor")
			built.output, built.err = build.CombinedOutput()
		}
	})
	require.NoError(t, built.err, "%s", built.output)
	return filepath.Join(built.folder, name)
}

// front is a front whose listening socket the test holds, as a service manager does.
type front struct {
	t        *testing.T
	args     []string
	env      []string
	dir      string
	log      *os.File // a file, because replicas survive the front and write to it
	listener *os.File
	url      string

	mu      sync.Mutex
	process *exec.Cmd
	ended   chan struct{}
}

// newFront starts a front with flags and the command of its replicas.
func newFront(t *testing.T, env []string, args ...string) *front {
	t.Helper()
	dir, err := os.MkdirTemp("", "st") // short enough for sockets
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	file, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	url := "http://" + l.Addr().String()
	l.Close()
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	f := &front{t: t, args: append([]string{"-dir", dir}, args...), env: env, dir: dir, log: log, listener: file, url: url}
	f.start()
	t.Cleanup(func() {
		f.process.Process.Kill()
		<-f.ended
		f.start()                                                                                             // a front stops the replicas of earlier ones too
		require.Eventually(t, func() bool { return f.replicas() != nil }, 30*time.Second, 5*time.Millisecond) // it handles signals
		f.stop()
		var left []string
		environs, err := filepath.Glob("/proc/[0-9]*/environ")
		require.NoError(t, err)
		for _, file := range environs {
			text, _ := os.ReadFile(file) // it may have ended
			if strings.Contains(string(text), "SHAREDTENSOR_REPLICA="+dir+"#") {
				left = append(left, file)
			}
		}
		require.Empty(t, left, "replicas are left")
		if t.Failed() {
			t.Log(f.text())
		}
		log.Close()
		file.Close()
		os.RemoveAll(dir)
	})
	return f
}

// start starts the front's process. The shell sets LISTEN_PID to its own id, which the front has too.
func (f *front) start() {
	f.t.Helper()
	words := append([]string{"-c", `LISTEN_PID=$$ exec "$@"`, "sh", program(f.t, "replicas")}, f.args...)
	cmd := exec.Command("sh", words...)
	cmd.Env = append(append(os.Environ(), "LISTEN_FDS=1"), f.env...)
	cmd.Stdout, cmd.Stderr = f.log, f.log
	cmd.ExtraFiles = []*os.File{f.listener}
	require.NoError(f.t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the state has it
		close(ended)
	}()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.process, f.ended = cmd, ended
}

// stop ends the front with SIGTERM and returns its exit status.
func (f *front) stop() int {
	f.t.Helper()
	require.NoError(f.t, f.process.Process.Signal(syscall.SIGTERM))
	select {
	case <-f.ended:
	case <-time.After(30 * time.Second):
		f.t.Fatal("the front does not end: ", f.text())
	}
	return f.process.ProcessState.ExitCode()
}

// text returns the log of the front and its replicas.
func (f *front) text() string {
	text, err := os.ReadFile(f.log.Name())
	require.NoError(f.t, err)
	return string(text)
}

// eventually waits for a condition.
func (f *front) eventually(what string, done func() bool) {
	f.t.Helper()
	require.Eventually(f.t, done, 30*time.Second, 5*time.Millisecond, what)
}

// replicaStatus is an element of GET /replicas.
type replicaStatus struct {
	State    string
	PID      int
	Restarts int
}

// replicas returns the status of the replicas, or nil while the front does not answer.
func (f *front) replicas() (all []replicaStatus) {
	answer, err := (&http.Client{Timeout: time.Second}).Get(f.url + "/replicas")
	if err != nil {
		return nil
	}
	defer answer.Body.Close()
	_ = json.NewDecoder(answer.Body).Decode(&all)
	return all
}

// ready waits until n replicas are ready and returns their process ids.
func (f *front) ready(n int) (pids []int) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("%d replicas are ready", n), func() bool {
		pids = nil
		for _, r := range f.replicas() {
			if r.State == "ready" {
				pids = append(pids, r.PID)
			}
		}
		return len(pids) == n
	})
	return pids
}

// post sends a request and returns the status and the body.
func (f *front) post(path string, body []byte) (int, string, error) {
	answer, err := (&http.Client{Timeout: 30 * time.Second}).Post(f.url+path, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// running reports whether a process runs.
func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}
