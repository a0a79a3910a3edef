//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"example.com/onnx/internal/run"
	"example.com/onnx/ort"
)

// setup is one way to hold the weights.
type setup struct {
	name string
	// shared means that an owner holds the weights. Otherwise file is the suffix of the model file.
	shared bool
	file   string
	flags  []string
}

var setups = []setup{
	{"private, ONNX Runtime's options", false, ".onnx", []string{"-optimize", "99", "-prepack", "-arena"}},
	{"private, options of shared", false, ".onnx", nil},
	{"files, mapped by ONNX Runtime", false, "-split.onnx", nil},
	{"shared", true, "", nil},
	{"shared, with prepacking", true, "", []string{"-prepack"}},
}

// batch combines requests of the large model.
const batch = "x=0,y=0"

// running are the processes of a setup.
type running struct {
	service, owner *run.Process
}

// start starts a setup for a model with n workers.
func (s *stage) start(ctx context.Context, u setup, model string, n int) (_ *running, err error) {
	r := &running{}
	args := append([]string{"-library", s.path, "-batch", batch, "-batch-wait", "1ms"}, u.flags...)
	if u.shared {
		socket := s.file("large.sock")
		if r.owner, err = s.programs.Owner(ctx, socket, "large", s.file(model+"-split")); err != nil {
			return nil, err
		}
		args = append(args, "-socket", socket, "large")
	} else {
		args = append(args, "-private", s.file(model+u.file))
	}
	if r.service, err = s.programs.Service(ctx, n, args...); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

func (r *running) stop() error {
	var err error
	if r.service != nil {
		err = r.service.Stop()
	}
	if r.owner != nil {
		err = errors.Join(err, r.owner.Stop())
	}
	return err
}

// pids returns the owner and the workers.
func (r *running) pids() ([]int, error) {
	pids, err := r.service.Workers()
	if r.owner != nil {
		pids = append([]int{r.owner.PID}, pids...)
	}
	return pids, err
}

// touchAll sends requests until each worker has answered, so that each has used all weights.
func (r *running) touchAll(ctx context.Context, in map[string]ort.Tensor) error {
	workers, err := r.service.Workers()
	if err != nil {
		return err
	}
	client := run.NewClient()
	seen := make(map[int]bool)
	for len(seen) < len(workers) {
		var mu sync.Mutex
		var failed error
		var requests sync.WaitGroup
		for range 2 * len(workers) {
			requests.Go(func() {
				a, err := run.Infer(ctx, client, r.service.URL, in)
				mu.Lock()
				defer mu.Unlock()
				if failed = errors.Join(failed, err); err == nil {
					seen[a.Worker] = true
				}
			})
		}
		requests.Wait()
		if failed != nil {
			return failed
		}
	}
	return nil
}

// memory prints the processes of the shared setup, and what the weights add to the memory of each setup: the sum of the PSS
// of the owner and the workers, less the sum for the same processes with a tiny model.
func (s *stage) memory(ctx context.Context, weights int64) error {
	fmt.Fprintf(s.out, "\nMemory for the weights: PSS of owner and workers, less that of the same processes with a tiny model\n")
	fmt.Fprintf(s.out, "%-34s  1 worker  %d workers  ratio\n", "", s.workers)
	var table string
	for _, u := range s.setups {
		var share [2]int64
		for i, n := range []int{1, s.workers} {
			large, processes, err := s.pss(ctx, u, "large", n)
			if err != nil {
				return fmt.Errorf("%s: %w", u.name, err)
			}
			tiny, _, err := s.pss(ctx, u, "tiny", n)
			if err != nil {
				return fmt.Errorf("%s: %w", u.name, err)
			}
			share[i] = large - tiny
			if u.name == "shared" {
				table = processes
			}
		}
		ratio := float64(share[1]) / float64(share[0])
		fmt.Fprintf(s.out, "%-34s  %5.0f MB  %6.0f MB  %6.2f\n", u.name, megabytes(share[0]), megabytes(share[1]), ratio)
		if u.name == "shared" && weights >= 50_000_000 && ratio > 1.3 {
			return fmt.Errorf("%d workers need %.2f times the memory of one for shared weights", s.workers, ratio)
		}
	}
	fmt.Fprintf(s.out, "\nProcesses of the setup shared\n%s", table)
	return nil
}

// pss returns the PSS of a setup after each worker has answered, and a table of its processes.
func (s *stage) pss(ctx context.Context, u setup, model string, n int) (sum int64, table string, err error) {
	r, err := s.start(ctx, u, model, n)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	width := s.width
	if model == "tiny" {
		width = 64
	}
	if err := r.touchAll(ctx, input(width)); err != nil {
		return 0, "", err
	}
	pids, err := r.pids()
	if err != nil {
		return 0, "", err
	}
	for i, pid := range pids {
		n, err := run.PSS(pid)
		if err != nil {
			return 0, "", err
		}
		role := "worker"
		if i == 0 && u.shared {
			role = "owner"
		}
		table += fmt.Sprintf("  %-7d %-7s PSS %5.0f MB\n", pid, role, megabytes(n))
		sum += n
	}
	return sum, table, nil
}

// speed prints the time of a restart and the requests per second of each setup.
func (s *stage) speed(ctx context.Context) error {
	fmt.Fprintf(s.out, "\nRestart of one of %d workers after SIGKILL, from start of the process to ready, median of %d; requests per second of %d clients\n",
		s.workers, s.restarts, 2*s.workers)
	fmt.Fprintf(s.out, "%-34s  restart   of it the model  requests per second\n", "")
	var first time.Duration
	for i, u := range s.setups {
		start, load, rate, err := s.speedOf(ctx, u)
		if err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		if i == 0 {
			first = start
		}
		fmt.Fprintf(s.out, "%-34s  %4d ms  %12d ms  %19.0f  (restart %.1f times as fast)\n", u.name, start.Milliseconds(), load.Milliseconds(), rate,
			float64(first)/float64(start))
	}
	return nil
}

func (s *stage) speedOf(ctx context.Context, u setup) (start, load time.Duration, rate float64, err error) {
	r, err := s.start(ctx, u, "large", s.workers)
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	requests, err := run.StartLoad(ctx, r.service.URL, 2*s.workers, s.input(), nil)
	if err != nil {
		return 0, 0, 0, err
	}
	time.Sleep(time.Duration(s.seconds * float64(time.Second)))
	_, failed, rate, last := requests.Stop()
	if failed > 0 {
		return 0, 0, 0, fmt.Errorf("%d requests failed: %w", failed, last)
	}
	var starts, loads []time.Duration
	for i := range s.restarts {
		if err := r.killWorker(); err != nil {
			return 0, 0, 0, err
		}
		found, err := r.service.WaitLog(ctx, ` ready pid=\d+ start=(\S+) load=(\S+)`, s.workers+i+1)
		if err != nil {
			return 0, 0, 0, err
		}
		match := found[len(found)-1]
		started, err := time.ParseDuration(match[1])
		if err != nil {
			return 0, 0, 0, err
		}
		loaded, err := time.ParseDuration(match[2])
		if err != nil {
			return 0, 0, 0, err
		}
		starts, loads = append(starts, started), append(loads, loaded)
	}
	slices.Sort(starts)
	slices.Sort(loads)
	return starts[len(starts)/2], loads[len(loads)/2], rate, nil
}
