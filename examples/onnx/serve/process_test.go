//go:build linux

package serve_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/onnx/internal/run"
	"example.com/onnx/internal/synthetic"
	"example.com/onnx/internal/wheel"
	"example.com/onnx/internal/wheeltest"
	"example.com/onnx/ort"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// limit is the time after which a test fails.
const limit = 2 * time.Minute

// programs compiles the programs once.
var programs = sync.OnceValues(func() (run.Programs, error) {
	dir, err := os.MkdirTemp("", "onnx-test-")
	if err != nil {
		return run.Programs{}, err
	}
	buildFolder = dir
	return run.Build(context.Background(), dir)
})

var buildFolder string

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(buildFolder)
	os.Exit(code)
}

// bench is an owner and a service of two workers for a small model.
type bench struct {
	ctx            context.Context
	prefix, socket string
	owner, service *run.Process
	client         *http.Client
}

const width = 64

func newBench(t *testing.T, flags ...string) *bench {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	library := wheeltest.Path(ctx, t, wheel.Runtime)
	p, err := programs()
	require.NoError(t, err)
	b := &bench{ctx: ctx, prefix: filepath.Join(t.TempDir(), "model"), client: run.NewClient()}
	b.write(t, synthetic.Model{Layers: 2, Width: width, Seed: 1})
	b.socket = filepath.Join(t.TempDir(), "s")
	b.owner, err = p.Owner(ctx, b.socket, "m", b.prefix)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.owner.Stop()) })
	args := append([]string{"-library", library, "-socket", b.socket, "-batch", "x=0,y=0"}, flags...)
	b.service, err = p.Service(ctx, 2, append(args, "m")...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.service.Kill() })
	return b
}

// write writes the two files of a model.
func (b *bench) write(t *testing.T, m synthetic.Model) {
	p, err := programs()
	require.NoError(t, err)
	whole := filepath.Join(t.TempDir(), "whole.onnx")
	require.NoError(t, m.WriteFile(whole))
	require.NoError(t, p.Split(b.ctx, whole, b.prefix))
}

func rows(n int64) map[string]ort.Tensor {
	return map[string]ort.Tensor{"x": ort.Floats([]int64{n, width}, make([]float32, n*width))}
}

func requireStatus(t *testing.T, want int, err error) {
	t.Helper()
	var status *run.StatusError
	require.ErrorAs(t, err, &status)
	require.Equal(t, want, status.Status, status.Text)
}

func TestServiceLimitsRequests(t *testing.T) {
	b := newBench(t, "-max-body", "4096", "-max-rows", "4")
	a, err := run.Infer(b.ctx, b.client, b.service.URL, rows(4))
	require.NoError(t, err)
	require.Equal(t, []int64{4, width}, a.Outputs["y"].Shape)

	_, err = run.Infer(b.ctx, b.client, b.service.URL, rows(5))
	requireStatus(t, http.StatusBadRequest, err)
	_, err = run.Infer(b.ctx, b.client, b.service.URL, rows(40))
	requireStatus(t, http.StatusRequestEntityTooLarge, err)
	_, err = run.Infer(b.ctx, b.client, b.service.URL, map[string]ort.Tensor{"z": rows(1)["x"]})
	requireStatus(t, http.StatusBadRequest, err)
	_, err = run.Infer(b.ctx, b.client, b.service.URL, map[string]ort.Tensor{"x": ort.Floats([]int64{1, 3}, make([]float32, 3))})
	requireStatus(t, http.StatusBadRequest, err)
	response, err := b.client.Post(b.service.URL+"/infer", "", strings.NewReader("not safetensors"))
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
}

// Requests over the limit of the queue are refused at once, and the others are answered.
func TestServiceLimitsItsQueue(t *testing.T) {
	b := newBench(t, "-max-queue", "2", "-batch-wait", "1s")
	var group sync.WaitGroup
	var answered, busy atomic.Int64
	for range 16 {
		group.Go(func() {
			_, err := run.Infer(b.ctx, b.client, b.service.URL, rows(1))
			var status *run.StatusError
			if errors.As(err, &status) && status.Status == http.StatusServiceUnavailable {
				busy.Add(1)
			} else if err == nil {
				answered.Add(1)
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 16, answered.Load()+busy.Load())
	require.Positive(t, answered.Load())
	require.Positive(t, busy.Load())
}

// Requests that arrive while others wait are computed in one run, and a bad one fails alone.
func TestServiceCombinesRequests(t *testing.T) {
	b := newBench(t, "-batch-wait", "300ms")
	var group sync.WaitGroup
	var mu sync.Mutex
	largest, bad := 0, 0
	for i := range 8 {
		group.Go(func() {
			in := rows(1)
			if i == 0 {
				in = map[string]ort.Tensor{"x": ort.Floats([]int64{1, 3}, make([]float32, 3))}
			}
			a, err := run.Infer(b.ctx, b.client, b.service.URL, in)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				bad++
				return
			}
			largest = max(largest, a.Batch)
		})
	}
	group.Wait()
	require.Equal(t, 1, bad)
	require.Greater(t, largest, 1)
}

// Both workers switch to a new version. The owner refuses weights that do not fit the graph.
func TestServiceFollowsVersions(t *testing.T) {
	b := newBench(t)
	before, err := run.Infer(b.ctx, b.client, b.service.URL, rows(1))
	require.NoError(t, err)
	require.Equal(t, uint64(1), before.Version)

	b.write(t, synthetic.Model{Layers: 3, Width: width, Seed: 2}) // another graph
	require.NoError(t, b.owner.Signal(syscall.SIGHUP))
	_, err = b.service.WaitLog(b.ctx, ` attached pid=\d+ version=2`, 2)
	require.NoError(t, err)
	for range 4 {
		require.Eventually(t, func() bool {
			h, status, err := run.Health(b.ctx, b.client, b.service.URL)
			return err == nil && status == http.StatusOK && h.Version == 2
		}, limit, 10*time.Millisecond)
	}
	after, err := run.Infer(b.ctx, b.client, b.service.URL, rows(1))
	require.NoError(t, err)
	require.Positive(t, run.Difference(before.Outputs["y"], after.Outputs["y"]))

	graph, err := os.ReadFile(b.prefix + ".onnx")
	require.NoError(t, err)
	b.write(t, synthetic.Model{Layers: 2, Width: width, Seed: 3})
	require.NoError(t, os.WriteFile(b.prefix+".onnx", graph, 0o600)) // it needs three layers
	require.NoError(t, b.owner.Signal(syscall.SIGHUP))
	_, err = b.owner.WaitLog(b.ctx, `are not published.*missing`, 1)
	require.NoError(t, err)

	// Another client publishes a version that has no graph. Workers report it and keep theirs.
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	client, err := endpoint.Dial(b.ctx, endpoint.ClientOptions{Socket: b.socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer client.Close()
	version, err := client.NewVersion(b.ctx, "m", []module.NamedSpec{{Name: "w0", DType: tensor.Float32, Shape: tensor.Shape{4}}})
	require.NoError(t, err)
	_, err = version.Commit(b.ctx, endpoint.PublishOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		h, status, err := run.Health(b.ctx, b.client, b.service.URL)
		return err == nil && status == http.StatusOK && h.Version == 2 && strings.Contains(h.Refused, "onnx-split")
	}, limit, 10*time.Millisecond)
	a, err := run.Infer(b.ctx, b.client, b.service.URL, rows(1))
	require.NoError(t, err)
	require.Equal(t, uint64(2), a.Version)
}

// A killed worker is started again, and requests succeed meanwhile.
func TestServiceSurvivesAKilledWorker(t *testing.T) {
	b := newBench(t)
	workers, err := b.service.Workers()
	require.NoError(t, err)
	require.Len(t, workers, 2)
	require.NoError(t, syscall.Kill(workers[0], syscall.SIGKILL))
	_, err = b.service.WaitLog(b.ctx, `started again`, 1)
	require.NoError(t, err)
	for range 8 {
		a, err := run.Infer(b.ctx, b.client, b.service.URL, rows(1))
		require.NoError(t, err)
		require.NotEqual(t, workers[0], a.Worker)
	}
	_, err = b.service.WaitLog(b.ctx, ` ready pid=`, 3)
	require.NoError(t, err)
}

// Workers keep their version after the owner was killed.
func TestServiceSurvivesAKilledOwner(t *testing.T) {
	b := newBench(t)
	p, err := programs()
	require.NoError(t, err)
	socket := filepath.Join(t.TempDir(), "second")
	second, err := p.Owner(b.ctx, socket, "m", b.prefix)
	require.NoError(t, err)
	library, err := wheel.Runtime(b.ctx)
	require.NoError(t, err)
	service, err := p.Service(b.ctx, 1, "-library", library, "-socket", socket, "m")
	require.NoError(t, err)
	defer service.Kill()
	require.NoError(t, second.Kill())
	a, err := run.Infer(b.ctx, b.client, service.URL, rows(1))
	require.NoError(t, err)
	require.Equal(t, uint64(1), a.Version)
}

// Requests in flight are answered after SIGTERM, and the processes end.
func TestServiceDrains(t *testing.T) {
	b := newBench(t, "-batch-wait", "1s")
	type answer struct {
		a   *run.Answer
		err error
	}
	answers := make(chan answer, 4)
	for range cap(answers) {
		go func() {
			a, err := run.Infer(b.ctx, b.client, b.service.URL, rows(1))
			answers <- answer{a, err}
		}()
	}
	time.Sleep(300 * time.Millisecond) // the requests wait for others to join their runs
	require.NoError(t, b.service.Stop())
	answered := 0
	for range cap(answers) {
		got := <-answers
		if got.err == nil {
			answered++
			continue
		}
		// A slow machine accepts some only after the port was closed.
		require.True(t, errors.Is(got.err, syscall.ECONNREFUSED) || errors.Is(got.err, syscall.ECONNRESET), "%v", got.err)
	}
	require.Positive(t, answered)
	require.Contains(t, b.service.Log(), "drained")
	_, err := run.Infer(b.ctx, b.client, b.service.URL, rows(1))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}
