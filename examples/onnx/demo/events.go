//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"example.com/onnx/internal/run"
	"example.com/onnx/internal/synthetic"
	"example.com/onnx/ort"
)

// killWorker kills one worker.
func (r *running) killWorker() error {
	workers, err := r.service.Workers()
	if err != nil {
		return err
	}
	if len(workers) == 0 {
		return errors.New("no worker runs")
	}
	return syscall.Kill(workers[0], syscall.SIGKILL)
}

// events kills a worker and publishes a new version while clients send requests, and compares each answer with the output
// of the version that it names.
func (s *stage) events(ctx context.Context) (err error) {
	r, err := s.start(ctx, setup{shared: true}, "large", s.workers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	want := make([]ort.Tensor, 3) // by version
	if want[1], err = s.output("large.onnx"); err != nil {
		return err
	}
	next := synthetic.Model{Layers: s.layers, Width: s.width, Seed: 2}
	if err := s.makePair(ctx, "next", next); err != nil {
		return err
	}
	if want[2], err = s.output("next.onnx"); err != nil {
		return err
	}
	if run.Difference(want[1], want[2]) < 100*tolerance {
		return errors.New("the versions cannot be distinguished")
	}
	var mu sync.Mutex
	answers := make(map[uint64]int)
	workers := make(map[int]uint64) // newest version of each worker
	check := func(a *run.Answer) error {
		mu.Lock()
		defer mu.Unlock()
		answers[a.Version]++
		workers[a.Worker] = max(workers[a.Worker], a.Version)
		if a.Version < 1 || a.Version > 2 {
			return fmt.Errorf("an answer is of version %d", a.Version)
		}
		if d := run.Difference(want[a.Version], a.Outputs["y"]); d > tolerance {
			return fmt.Errorf("an answer of version %d differs by %g", a.Version, d)
		}
		return nil
	}

	clients := 2 * s.workers
	load, err := run.StartLoad(ctx, r.service.URL, clients, s.input(), check)
	if err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	err = r.killWorker()
	if err == nil {
		_, err = r.service.WaitLog(ctx, ` ready pid=(\d+)`, s.workers+1)
	}
	answered, failed, _, last := load.Stop()
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\nA worker is killed under load: %d requests answered, %d failed (its connections), and it is started again\n", answered, failed)
	if failed > int64(clients) {
		return fmt.Errorf("%d requests of %d clients failed: %w", failed, clients, last)
	}

	clear(answers)
	if load, err = run.StartLoad(ctx, r.service.URL, clients, s.input(), check); err != nil {
		return err
	}
	err = s.replace(ctx, r)
	answered, failed, _, last = load.Stop()
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "A new version is published under load: %d requests answered, %d failed; answers by version: %v\n", answered, failed, answers)
	if failed > 0 {
		return fmt.Errorf("%d requests failed: %w", failed, last)
	}
	return nil
}

// replace publishes the next version and waits until a request to each worker would use it.
func (s *stage) replace(ctx context.Context, r *running) error {
	for _, suffix := range []string{".onnx", ".safetensors"} {
		if err := os.Rename(s.file("next-split"+suffix), s.file("large-split"+suffix)); err != nil {
			return err
		}
	}
	if err := r.owner.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	if _, err := r.service.WaitLog(ctx, ` attached pid=\d+ version=2`, s.workers); err != nil {
		return err
	}
	time.Sleep(300 * time.Millisecond) // requests on the new version
	return nil
}

// output returns the output of a model that is not split.
func (s *stage) output(name string) (ort.Tensor, error) {
	outputs, err := s.reference(s.file(name), s.input())
	return outputs["y"], err
}
