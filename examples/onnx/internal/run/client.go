//go:build linux

package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"example.com/onnx/ort"
	"example.com/onnx/serve"
)

// Answer is a response of a worker.
type Answer struct {
	Outputs map[string]ort.Tensor
	Version uint64
	Worker  int
	// Batch is the number of requests of the run.
	Batch int
}

// StatusError is a response with another status than 200.
type StatusError struct {
	Status int
	Text   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Text) }

// Infer sends one request.
func Infer(ctx context.Context, client *http.Client, url string, inputs map[string]ort.Tensor) (*Answer, error) {
	body, err := serve.EncodeTensors(inputs)
	if err != nil {
		return nil, err
	}
	return post(ctx, client, url, body)
}

func post(ctx context.Context, client *http.Client, url string, body []byte) (*Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/infer", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, &StatusError{response.StatusCode, string(answer)}
	}
	a := &Answer{}
	a.Version, _ = strconv.ParseUint(response.Header.Get(serve.HeaderVersion), 10, 64)
	a.Worker, _ = strconv.Atoi(response.Header.Get(serve.HeaderWorker))
	a.Batch, _ = strconv.Atoi(response.Header.Get(serve.HeaderBatch))
	a.Outputs, err = serve.DecodeTensors(answer)
	return a, err
}

// NewClient returns a client that opens a connection for each request, so that the kernel chooses a worker for each one.
func NewClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
}

// Health returns the health of one worker.
func Health(ctx context.Context, client *http.Client, url string) (h serve.Health, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", nil)
	if err != nil {
		return h, 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return h, 0, err
	}
	defer response.Body.Close()
	return h, response.StatusCode, json.NewDecoder(response.Body).Decode(&h)
}

// Load sends requests from several clients until Stop.
type Load struct {
	answered, failed atomic.Int64
	lastError        atomic.Pointer[error]
	begin            time.Time
	stop             chan struct{}
	clients          sync.WaitGroup
}

// StartLoad starts clients that send inputs one after another. check receives each answer; nil accepts all. A client keeps
// its connection, and so its worker, until it fails.
func StartLoad(ctx context.Context, url string, clients int, inputs map[string]ort.Tensor, check func(a *Answer) error) (*Load, error) {
	body, err := serve.EncodeTensors(inputs)
	if err != nil {
		return nil, err
	}
	l := &Load{begin: time.Now(), stop: make(chan struct{})}
	for range clients {
		l.clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				a, err := post(ctx, client, url, body)
				if err == nil && check != nil {
					err = check(a)
				}
				if err != nil {
					l.failed.Add(1)
					l.lastError.Store(&err)
					continue
				}
				l.answered.Add(1)
			}
		})
	}
	return l, nil
}

// Stop ends the clients and returns the number of answers and failures, answers per second, and the last failure.
func (l *Load) Stop() (answered, failed int64, rate float64, last error) {
	close(l.stop)
	l.clients.Wait()
	if p := l.lastError.Load(); p != nil {
		last = *p
	}
	answered = l.answered.Load()
	return answered, l.failed.Load(), float64(answered) / time.Since(l.begin).Seconds(), last
}

// Answered returns the number of answers so far.
func (l *Load) Answered() int64 { return l.answered.Load() }

// Difference returns the largest difference between elements of two float32 tensors, relative to elements above 1 and
// absolute below, or infinity if shapes differ.
func Difference(a, b ort.Tensor) float64 {
	x, y := a.Float32s(), b.Float32s()
	if len(x) != len(y) || len(x) == 0 || fmt.Sprint(a.Shape) != fmt.Sprint(b.Shape) {
		return math.Inf(1)
	}
	largest := 0.0
	for i := range x {
		d := math.Abs(float64(x[i])-float64(y[i])) / max(1, math.Abs(float64(x[i])))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		largest = max(largest, d)
	}
	return largest
}
