package endpoint_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/endpointtest"
	"github.com/sharedtensor/sharedtensor/module"
)

func TestMain(m *testing.M) { endpointtest.Main(m) }

// workers are the processes of most tests: owners and clients, by what they are asked to do.
var workers = endpointtest.NewRole("worker", sentinels, newWorker)

// perform is the command of a worker that has none of its own.
var perform = endpointtest.NewOp(workers, "perform", (*worker).do)

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
	Value   float64              `json:"value,omitempty"`
}

// sentinels are the errors that children report by name.
var sentinels = map[string]error{
	"not found": endpoint.ErrNotFound, "invalid": endpoint.ErrInvalid, "in use": endpoint.ErrInUse, "permission": endpoint.ErrPermission,
	"unavailable": endpoint.ErrUnavailable, "limit": endpoint.ErrLimit, "protocol": endpoint.ErrProtocol, "closed": endpoint.ErrClosed,
	"unsupported": errors.ErrUnsupported, "deadline": context.DeadlineExceeded, "handle": driver.ErrHandle,
	"not exist": os.ErrNotExist,
}

// child is a worker under test.
type child struct {
	*endpointtest.Process[worker]
	t testing.TB
}

// start starts a child, which ends with the test at the latest.
func start(t testing.TB, configure ...func(*exec.Cmd)) *child {
	t.Helper()
	return &child{workers.Start(t, configure...), t}
}

// ask sends a command and returns the answer, which may be an error.
func (c *child) ask(do command) answer {
	c.t.Helper()
	a, err := perform.Ask(c.Process, do)
	var failed *endpointtest.Error
	if errors.As(err, &failed) {
		a.Error, a.Is = failed.Text, failed.Names
	}
	return a
}

// must sends a command that has to succeed.
func (c *child) must(do command) answer {
	c.t.Helper()
	a := c.ask(do)
	require.Empty(c.t, a.Error, do.Do)
	return a
}

// owner starts a process that serves on a fresh socket.
func owner(t testing.TB) (*child, string) {
	t.Helper()
	socket := endpointtest.SocketPath(t)
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

// synthetic is a model whose content follows from the seed.
func synthetic(dev driver.Device, m model) (*module.StateDict, error) {
	s := module.Synthetic{Seed: m.Seed, Tensors: 3, Bytes: 1 << 16}
	if m.Tensors > 0 {
		s.Tensors = m.Tensors
	}
	if m.Bytes > 0 {
		s.Bytes = m.Bytes
	}
	return module.Synthesize(dev, s)
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
