package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/examples/vad/silero"
	"github.com/sharedtensor/sharedtensor/examples/vad/wav"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// weights returns the file of the real model if it is in the folder SHAREDTENSOR_TESTDATA or in shared/data beside the clone, else
// one with random weights of the same shapes.
func weights(t *testing.T) string {
	t.Helper()
	folder := os.Getenv("SHAREDTENSOR_TESTDATA")
	if folder == "" {
		folder = "../../../shared/data"
	}
	if path, err := filepath.Abs(filepath.Join(folder, "silero_vad_16k.safetensors")); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Log("the weights of Silero VAD are not here: random ones replace them")
	return randomWeights(t)
}

// randomWeights writes a file with random weights of Silero VAD.
func randomWeights(t *testing.T) string {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	sd := module.NewStateDict()
	defer sd.Close()
	random := rand.New(rand.NewPCG(1, 2))
	for name, shape := range map[string]tensor.Shape{
		"stft_conv.weight": {258, 1, 256}, "conv1.weight": {128, 129, 3}, "conv1.bias": {128}, "conv2.weight": {64, 128, 3},
		"conv2.bias": {64}, "conv3.weight": {64, 64, 3}, "conv3.bias": {64}, "conv4.weight": {128, 64, 3}, "conv4.bias": {128},
		"lstm_cell.weight_ih": {512, 128}, "lstm_cell.weight_hh": {512, 128}, "lstm_cell.bias_ih": {512},
		"lstm_cell.bias_hh": {512}, "final_conv.weight": {1, 128, 1}, "final_conv.bias": {1},
	} {
		n, err := shape.NumElements()
		require.NoError(t, err)
		values := make([]float32, n)
		for i := range values {
			values[i] = (2*random.Float32() - 1) / 8
		}
		x, err := tensor.FromSlice(dev, shape, values)
		require.NoError(t, err)
		require.NoError(t, sd.Set(name, x))
	}
	path := filepath.Join(t.TempDir(), "random.safetensors")
	require.NoError(t, module.Save(context.Background(), path, sd, module.SaveOptions{}))
	return path
}

// clip returns a WAV file of a tone in noise, and the network's probabilities for it on the weights of a file.
func clip(t *testing.T, weights string) (body []byte, want []float32) {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	c := &wav.Clip{SampleRate: silero.SampleRate}
	for i := range 20 * silero.ChunkSamples {
		tone := math.Sin(float64(i)/20) * math.Sin(float64(i)/3000)
		c.Samples = append(c.Samples, int16(8000*tone+random.Float64()*2000))
	}
	var b bytes.Buffer
	require.NoError(t, wav.Encode(&b, c))
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	sd, err := module.Load(context.Background(), dev, weights, module.LoadOptions{})
	require.NoError(t, err)
	defer sd.Close()
	network, err := silero.New(sd)
	require.NoError(t, err)
	chunk := make([]float32, silero.ChunkSamples)
	for at := 0; at < len(c.Samples); at += silero.ChunkSamples {
		c.Chunk(chunk, at)
		p, err := network.Process(chunk)
		require.NoError(t, err)
		want = append(want, p)
	}
	return b.Bytes(), want
}

// owner is a process that owns the model. It starts again when it ends, as a service does.
type owner struct {
	socket string

	mu      sync.Mutex
	process *os.Process
	starts  int
}

func newOwner(t *testing.T, model string) *owner {
	t.Helper()
	dir, err := os.MkdirTemp("", "st")
	require.NoError(t, err)
	o := &owner{socket: filepath.Join(dir, "o.sock")}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	command := program(t, "sharedtensor")
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, command, "serve", "--socket", o.socket, "vad="+model)
			if err := cmd.Start(); err != nil {
				return
			}
			o.mu.Lock()
			o.process = cmd.Process
			o.starts++
			o.mu.Unlock()
			_ = cmd.Wait() // it was killed
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		os.RemoveAll(dir)
	})
	return o
}

// kill kills the owner and waits for the next one.
func (o *owner) kill(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	before := o.starts
	require.NoError(t, o.process.Kill())
	o.mu.Unlock()
	require.Eventually(t, func() bool {
		o.mu.Lock()
		again := o.starts > before
		o.mu.Unlock()
		client, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: o.socket})
		if err != nil {
			return false
		}
		defer client.Close()
		_, err = client.Info(context.Background(), "vad")
		return again && err == nil
	}, 30*time.Second, 5*time.Millisecond, "an owner serves again")
}

// load sends requests until it is stopped. Each of them must be answered with the network's result.
type load struct {
	group    sync.WaitGroup
	stopped  atomic.Bool
	answered atomic.Int64
	repeated atomic.Int64 // by the client, because the front was killed

	mu     sync.Mutex
	failed error
	pids   map[int]bool
}

// startLoad starts clients that repeat a request if their connection ends, because the front may be killed too. They accept
// no other error.
func startLoad(f *front, clients int, body []byte, want []float32) *load {
	l := &load{pids: map[int]bool{}}
	for range clients {
		l.group.Go(func() {
			for !l.stopped.Load() {
				code, text, err := f.post("/vad", body)
				for deadline := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(deadline); code, text, err = f.post("/vad", body) {
					l.repeated.Add(1)
					time.Sleep(5 * time.Millisecond)
				}
				var answer struct {
					Result []float32
					PID    int
				}
				if err == nil && code == http.StatusOK {
					err = json.Unmarshal([]byte(text), &answer)
				} else if err == nil {
					err = fmt.Errorf("%d: %s", code, text)
				}
				if err == nil && fmt.Sprint(answer.Result) != fmt.Sprint(want) {
					err = errors.New("a wrong result: " + text)
				}
				l.mu.Lock()
				l.failed = errors.Join(l.failed, err)
				l.pids[answer.PID] = true
				l.mu.Unlock()
				l.answered.Add(1)
			}
		})
	}
	return l
}

// more waits until n more requests were answered.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	from := l.answered.Load()
	require.Eventually(t, func() bool { return l.answered.Load() >= from+n }, 60*time.Second, time.Millisecond, "requests are answered")
}

func (l *load) end(t *testing.T) {
	t.Helper()
	l.stopped.Store(true)
	l.group.Wait()
	require.NoError(t, l.failed)
}

// Replicas, the owner and the front are killed under load. No request that may run twice fails, and every answer is right.
func TestKillsUnderLoad(t *testing.T) {
	t.Parallel()
	model := weights(t)
	body, want := clip(t, model)
	o := newOwner(t, model)
	f := newFront(t, nil, "-n", "3", "-repeat", "/vad", "--", program(t, "replica"), "-listen", "{socket}", "-owner", o.socket, "vad")
	f.ready(3)
	l := startLoad(f, 4, body, want)
	defer l.stopped.Store(true)
	for round := range 2 {
		for _, pid := range f.ready(3)[:round+1] {
			l.more(t, 10)
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		l.more(t, 20)
		f.ready(3)
		require.Zero(t, l.repeated.Load()*int64(1-round), "the front has repeated the requests")

		pids := f.ready(3)
		o.kill(t)
		l.more(t, 20)
		require.Equal(t, pids, f.ready(3), "the replicas stay without their owner")

		require.NoError(t, f.process.Process.Kill())
		<-f.ended
		f.start()
		l.more(t, 20)
		require.Equal(t, pids, f.ready(3), "the next front uses the replicas")
	}
	// Replicas that start while there is no owner serve when there is one.
	o.mu.Lock()
	require.NoError(t, o.process.Kill())
	o.mu.Unlock()
	for _, pid := range f.ready(3) {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	l.more(t, 30)
	f.ready(3)
	l.end(t)
	require.Greater(t, len(l.pids), 6)
}

// A replica with torch returns the same results as a replica in Go, on the same memory.
func TestTorch(t *testing.T) {
	t.Parallel()
	python := os.Getenv("SHAREDTENSOR_TORCH_PYTHON")
	if python == "" {
		python = "python3"
	}
	err := exec.Command(python, "-c", "import torch, numpy, cbor2").Run()
	drivertest.Needs(t, "torch", err == nil, "python3 has no torch, numpy or cbor2 (SHAREDTENSOR_TORCH_PYTHON names another one)")
	package_, err := filepath.Abs("../python")
	require.NoError(t, err)
	script, err := filepath.Abs("replica.py")
	require.NoError(t, err)
	model := weights(t)
	body, want := clip(t, model)
	o := newOwner(t, model)
	f := newFront(t, []string{"PYTHONPATH=" + package_ + string(os.PathListSeparator) + os.Getenv("PYTHONPATH")}, "-n", "2", "-repeat", "/vad",
		"--", python, script, "--listen", "{socket}", "--owner", o.socket, "vad")
	killed := f.ready(2)[0]
	for i := range 4 {
		code, text, err := f.post("/vad", body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code, text)
		var answer struct{ Result []float32 }
		require.NoError(t, json.Unmarshal([]byte(text), &answer))
		require.InDeltaSlice(t, want, answer.Result, 1e-4)
		if i == 1 {
			require.NoError(t, syscall.Kill(killed, syscall.SIGKILL))
		}
		if i == 2 {
			o.kill(t)
		}
	}
	for _, wrong := range [][]byte{[]byte("no clip"), body[:len(body)-1]} {
		code, text, err := f.post("/vad", wrong)
		require.NoError(t, err)
		require.Equal(t, http.StatusBadRequest, code, text)
	}
	require.NotContains(t, f.ready(2), killed)
}
