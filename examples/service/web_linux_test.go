package service_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// web is the HTTP service of the example in separate processes.
type web struct {
	t       *testing.T
	process *exec.Cmd
	url     string

	mu  sync.Mutex
	log strings.Builder
}

var listening = regexp.MustCompile(`(\d+) workers on (http://\S+)`)

func startWeb(t *testing.T, socket string) *web {
	t.Helper()
	w := &web{t: t, process: exec.Command(filepath.Join(programs(t), "web"), "-listen", "127.0.0.1:0", socket)}
	log, err := w.process.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, w.process.Start())
	ended := make(chan struct{})
	t.Cleanup(func() {
		w.process.Process.Kill() // the workers end with it
		<-ended
		w.process.Wait()
		if t.Failed() {
			t.Log(w.said())
		}
	})
	url := make(chan string, 1)
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if found := listening.FindStringSubmatch(lines.Text()); found != nil {
				url <- found[2]
			}
			w.mu.Lock()
			fmt.Fprintln(&w.log, lines.Text())
			w.mu.Unlock()
		}
	}()
	select {
	case w.url = <-url:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not listen")
	}
	return w
}

// said returns the log.
func (w *web) said() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// eventually waits until all workers have logged a text.
func (w *web) eventually(times int, text string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return strings.Count(w.said(), text) >= times }, 30*time.Second, 10*time.Millisecond, text)
}

type answer struct {
	Y       []float32 `json:"y"`
	Version uint64    `json:"version"`
	Worker  int       `json:"worker"`
}

// ask sends a request on a new connection, so that any worker may answer.
func (w *web) ask(body string) (answer, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	r, err := client.Post(w.url+"/forward", "application/json", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return answer{}, err
	}
	if r.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("%s: %s", r.Status, bytes.TrimSpace(raw))
	}
	var a answer
	return a, json.Unmarshal(raw, &a)
}

// trainer publishes versions of the model from this process.
type trainer struct {
	t      *testing.T
	dev    driver.Device
	client *endpoint.Client
}

func newTrainer(t *testing.T, socket string) trainer {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	client, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Wait: true})
	require.NoError(t, err)
	t.Cleanup(func() {
		client.Close()
		dev.Close()
	})
	return trainer{t, dev, client}
}

// publish publishes a version of two layers, each factor times the identity: its answer to x is factor² x.
func (tr trainer) publish(factor float32, width int64) uint64 {
	tr.t.Helper()
	sd := module.NewStateDict()
	defer sd.Close()
	for i := range 2 {
		values := make([]float32, width*width)
		for j := int64(0); j < width*width; j += width + 1 {
			values[j] = factor
		}
		x, err := tensor.FromSlice(tr.dev, tensor.Shape{width, width}, values)
		require.NoError(tr.t, err)
		require.NoError(tr.t, sd.Set(fmt.Sprintf("layers.%d.weight", i), x))
	}
	version, err := tr.client.Publish(context.Background(), "base", sd, endpoint.PublishOptions{})
	require.NoError(tr.t, err)
	return version
}

// refused publishes a version that the service cannot use.
func (tr trainer) refused() uint64 {
	tr.t.Helper()
	sd := module.NewStateDict()
	defer sd.Close()
	x, err := tensor.FromSlice(tr.dev, tensor.Shape{3}, []float32{1, 2, 3})
	require.NoError(tr.t, err)
	require.NoError(tr.t, sd.Set("bias", x))
	version, err := tr.client.Publish(context.Background(), "base", sd, endpoint.PublishOptions{})
	require.NoError(tr.t, err)
	return version
}

// taken returns the log text of a worker that uses a version.
func taken(version uint64) string {
	return fmt.Sprintf("a version was taken name=base version=%d ", version)
}

func TestWebSwitchesVersionsWhileRequestsRun(t *testing.T) {
	t.Parallel()
	socket := socketPath(t)
	startOwner(t, socket)
	w := startWeb(t, socket)
	w.eventually(4, taken(1))
	train := newTrainer(t, socket)
	require.EqualValues(t, 2, train.publish(2, 8))
	w.eventually(4, taken(2))

	// Requests run continuously. Each is answered by one version for all layers.
	var group sync.WaitGroup
	stop := make(chan struct{})
	failures := make(chan error, 100)
	var mu sync.Mutex
	seen, by := map[uint64]bool{}, map[int]bool{}
	for range 4 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, err := w.ask(`{"x": [1, 10], "pace_ms": 5}`)
				factor := float32(a.Version)
				if err == nil && (len(a.Y) != 8 || a.Y[0] != factor*factor || a.Y[1] != 10*factor*factor) {
					err = fmt.Errorf("version %d answers %v", a.Version, a.Y)
				}
				if err != nil {
					failures <- err
					return
				}
				mu.Lock()
				seen[a.Version], by[a.Worker] = true, true
				mu.Unlock()
			}
		})
	}
	for version := uint64(3); version <= 6; version++ {
		require.Equal(t, version, train.publish(float32(version), 8))
		w.eventually(4, taken(version))
	}
	bad := train.refused()
	w.eventually(4, fmt.Sprintf("a version was refused name=base version=%d ", bad))
	answered := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return seen[6] && len(by) >= n
	}
	require.Eventually(t, func() bool { return answered(2) }, 30*time.Second, 10*time.Millisecond)
	close(stop)
	group.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}
	a, err := w.ask(`{"x": [1]}`)
	require.NoError(t, err)
	require.EqualValues(t, 6, a.Version, "a version that was refused is in use")
	_, err = w.ask(`{"x": [1, 2, 3, 4, 5, 6, 7, 8, 9]}`)
	require.ErrorContains(t, err, "400")
	w.eventually(4, "a version was unmapped name=base version=5 ")
}

func TestWebOutlivesItsOwnerAndWorkers(t *testing.T) {
	t.Parallel()
	socket := socketPath(t)
	owner := startOwner(t, socket)
	w := startWeb(t, socket)
	w.eventually(4, taken(1))
	require.NoError(t, owner.Process.Kill())
	_ = owner.Wait()
	w.eventually(4, "the owner of a model that is followed is gone")
	a, err := w.ask(`{"x": [1]}`)
	require.NoError(t, err, "the version that was taken is in use without an owner")
	require.Len(t, a.Y, 64)

	startOwner(t, socket)
	w.eventually(4, "the owner of a model that is followed is back")
	w.eventually(8, taken(1))
	a, err = w.ask(`{"x": [1]}`)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(a.Worker, syscall.SIGKILL))
	w.eventually(1, "is started again")
	w.eventually(9, taken(1))
	_, err = w.ask(`{"x": [1]}`)
	require.NoError(t, err)
}

func TestWebDrains(t *testing.T) {
	t.Parallel()
	socket := socketPath(t)
	startOwner(t, socket)
	w := startWeb(t, socket)
	w.eventually(4, taken(1))
	type outcome struct {
		answer answer
		err    error
	}
	const running = 8
	outcomes := make(chan outcome, running)
	for range running {
		go func() {
			a, err := w.ask(`{"x": [1], "pace_ms": 1500}`)
			outcomes <- outcome{a, err}
		}()
	}
	time.Sleep(700 * time.Millisecond) // they have started by then; a late one fails the test
	require.NoError(t, w.process.Process.Signal(syscall.SIGTERM))
	for range running {
		got := <-outcomes
		require.NoError(t, got.err, "a request that ran was not answered")
		require.Len(t, got.answer.Y, 64)
	}
	require.Eventually(t, func() bool { return strings.Contains(w.said(), "drained") }, 30*time.Second, 10*time.Millisecond)
	_, err := w.ask(`{"x": [1]}`)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	state, err := w.process.Process.Wait()
	require.NoError(t, err)
	require.True(t, state.Success(), state.String())
}

func TestWebWorkersEndWithTheirSupervisor(t *testing.T) {
	t.Parallel()
	socket := socketPath(t)
	startOwner(t, socket)
	w := startWeb(t, socket)
	w.eventually(4, taken(1))
	a, err := w.ask(`{}`)
	require.NoError(t, err)
	require.NoError(t, w.process.Process.Kill())
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/exe", a.Worker))
		return err != nil
	}, 30*time.Second, 10*time.Millisecond, "the worker outlives its supervisor")
}
