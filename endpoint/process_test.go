package endpoint_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// The tests run owners and clients as processes of their own: this test binary, started again with childEnv set, takes
// commands as JSON lines on its standard input and answers each with one on its standard output.
const childEnv = "ENDPOINT_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(runChild())
	}
	os.Exit(m.Run())
}

// command is what the parent asks of a child.
type command struct {
	Do      string   `json:"do"`
	Socket  string   `json:"socket,omitempty"`
	Name    string   `json:"name,omitempty"`
	Names   []string `json:"names,omitempty"`
	Version uint64   `json:"version,omitempty"`
	Key     string   `json:"key,omitempty"`
	Seed    uint64   `json:"seed,omitempty"`
	Tensors int      `json:"tensors,omitempty"`
	Bytes   int64    `json:"bytes,omitempty"`
	Wait    bool     `json:"wait,omitempty"`
	Millis  int64    `json:"millis,omitempty"`
	UIDs    []uint32 `json:"uids,omitempty"`
	Digests bool     `json:"digests,omitempty"`
}

// answer is what a child says.
type answer struct {
	Error   string               `json:"error,omitempty"`
	Is      []string             `json:"is,omitempty"` // the sentinels that the error answers for
	ID      string               `json:"id,omitempty"`
	Version uint64               `json:"version,omitempty"`
	Newest  uint64               `json:"newest,omitempty"`
	State   string               `json:"state,omitempty"`
	Leased  bool                 `json:"leased,omitempty"`
	Kind    string               `json:"kind,omitempty"`
	Name    string               `json:"name,omitempty"`
	Millis  float64              `json:"millis,omitempty"`
	Models  []endpoint.ModelInfo `json:"models,omitempty"`
	Files   int                  `json:"files,omitempty"`
	Maps    int                  `json:"maps,omitempty"`
	Threads int                  `json:"goroutines,omitempty"`
	Value   float64              `json:"value,omitempty"`
}

// sentinels are the errors that children report by name.
var sentinels = map[string]error{
	"not found": endpoint.ErrNotFound, "invalid": endpoint.ErrInvalid, "in use": endpoint.ErrInUse, "permission": endpoint.ErrPermission,
	"unavailable": endpoint.ErrUnavailable, "limit": endpoint.ErrLimit, "protocol": endpoint.ErrProtocol, "closed": endpoint.ErrClosed,
	"unsupported": errors.ErrUnsupported, "deadline": context.DeadlineExceeded, "handle": driver.ErrHandle,
	"not exist": os.ErrNotExist,
}

// child is a process under test.
type child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// start starts a child, which ends with the test at the latest.
func start(t testing.TB, configure ...func(*exec.Cmd)) *child {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	for _, c := range configure {
		c(cmd)
	}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{t: t, cmd: cmd, in: in, out: json.NewDecoder(out)}
	t.Cleanup(c.kill)
	return c
}

// ask sends a command and returns the answer, which may be an error.
func (c *child) ask(do command) answer {
	c.t.Helper()
	line, err := json.Marshal(do)
	require.NoError(c.t, err)
	_, err = c.in.Write(append(line, '\n'))
	require.NoError(c.t, err, "%s: the process has ended", do.Do)
	var a answer
	require.NoError(c.t, c.out.Decode(&a), "%s: the process has ended", do.Do)
	return a
}

// must sends a command that has to succeed.
func (c *child) must(do command) answer {
	c.t.Helper()
	a := c.ask(do)
	require.Empty(c.t, a.Error, do.Do)
	return a
}

// kill ends the process as a crash would.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		c.cmd.Process.Signal(syscall.SIGKILL)
		c.cmd.Wait()
	}
}

func (c *child) pid() int32 { return int32(c.cmd.Process.Pid) }

var socketNumber atomic.Int64

// socketPath is a path for a socket in a directory of the test's own, short enough for the kernel.
func socketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "st")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o700))
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, fmt.Sprintf("s%d.sock", socketNumber.Add(1)))
}

// owner starts a process that serves on a fresh socket.
func owner(t testing.TB) (*child, string) {
	t.Helper()
	socket := socketPath(t)
	c := start(t)
	c.must(command{Do: "serve", Socket: socket})
	return c, socket
}

// client starts a process that is connected to the socket.
func client(t testing.TB, socket string) *child {
	t.Helper()
	c := start(t)
	c.must(command{Do: "dial", Socket: socket})
	return c
}

// eventually waits for something that another process brings about.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			require.Fail(t, "did not come about within "+limit.String(), what)
		}
	}
}

// synthetic is a model whose content follows from the seed.
func synthetic(dev driver.Device, do command) (*module.StateDict, error) {
	s := module.Synthetic{Seed: do.Seed, Tensors: 3, Bytes: 1 << 16}
	if do.Tensors > 0 {
		s.Tensors = do.Tensors
	}
	if do.Bytes > 0 {
		s.Bytes = do.Bytes
	}
	return module.Synthesize(dev, s)
}

// runChild is the main function of a child.
func runChild() int {
	dev, err := openDevice()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := &worker{dev: dev, handles: map[string]*endpoint.Handle{}, watchers: map[string]*endpoint.Watcher{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	reply := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var do command
		if err := json.Unmarshal(lines.Bytes(), &do); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		a, err := w.do(do)
		if err != nil {
			a.Error = err.Error()
			for name, sentinel := range sentinels {
				if errors.Is(err, sentinel) {
					a.Is = append(a.Is, name)
				}
			}
		}
		reply.Encode(a)
	}
	return 0
}

// listOf is what s has published.
func listOf(s *endpoint.Server) []endpoint.ModelInfo {
	list, _ := s.List(context.Background()) // fails only where its context has ended
	return list
}

func destroyObject(t testing.TB, s *endpoint.Server, id string) {
	t.Helper()
	_, err := s.Destroy(context.Background(), id)
	require.NoError(t, err)
}

// wentBack says for each id whether a reference to it went back.
func wentBack(rows []endpoint.Released) map[string]bool {
	out := make(map[string]bool, len(rows))
	for _, row := range rows {
		out[row.ObjectID] = out[row.ObjectID] || row.Released
	}
	return out
}

// publishOn publishes sd, which it takes.
func publishOn(t testing.TB, s *endpoint.Server, name string, sd *module.StateDict) uint64 {
	t.Helper()
	version, err := s.Publish(context.Background(), name, sd)
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	return version
}
