//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// state is the state of a replica, as the front has observed it.
//
//	stopped ──> starting ──> ready <──> failing
//	   ^           │           │           │
//	   └───────────┴───────────┴───────────┘ it ended, or was killed because it did not answer
type state string

const (
	stopped  state = "stopped"
	starting state = "starting"
	ready    state = "ready" // it receives requests
	failing  state = "failing"
)

// Times of the supervision.
const (
	firstBackoff = 100 * time.Millisecond // it doubles up to -max-backoff
	steady       = 10 * time.Second       // a replica that was ready for so long starts again after firstBackoff
	minProbe     = 20 * time.Millisecond  // between health requests while it starts
	maxProbe     = 500 * time.Millisecond
	maxFailures  = 3 // failed health requests in a row, then it is killed
)

// replica is one of the processes that answer requests. The lock of its pool guards state, pid, requests and restarts.
type replica struct {
	options
	pool     *pool
	number   int
	network  string // of the address
	address  string
	client   *http.Transport
	check    chan struct{} // a token requests a health check
	state    state
	pid      int
	requests uint64
	restarts uint64
}

func newReplica(o options, p *pool, number int) *replica {
	r := &replica{options: o, pool: p, number: number, check: make(chan struct{}, 1), state: stopped}
	r.network, r.address = "unix", filepath.Join(o.dir, strconv.Itoa(number)+".sock")
	if strings.Contains(strings.Join(o.command, " "), "{port}") {
		r.network, r.address = "tcp", net.JoinHostPort("localhost", strconv.Itoa(o.port+number-1))
	}
	r.client = &http.Transport{
		MaxIdleConnsPerHost: o.requests,
		DisableCompression:  true, // answers pass unchanged
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, r.network, r.address)
		},
	}
	return r
}

// arguments returns the program and its arguments.
func (r *replica) arguments() []string {
	expand := strings.NewReplacer("{socket}", filepath.Join(r.dir, strconv.Itoa(r.number)+".sock"),
		"{port}", strconv.Itoa(r.port+r.number-1), "{n}", strconv.Itoa(r.number))
	var words []string
	for _, word := range r.command {
		words = append(words, expand.Replace(word))
	}
	return words
}

// mark returns the environment variable that marks the replica's process. The next front of the directory finds it.
func (r *replica) mark() string { return markPrefix(r.dir) + strconv.Itoa(r.number) }

// markPrefix returns the marks of a directory without their numbers.
func markPrefix(dir string) string { return "SHAREDTENSOR_REPLICA=" + dir + "#" }

// keepRunning keeps one process of the replica running until ctx ends, and then stops it.
func (r *replica) keepRunning(ctx context.Context) {
	pause := firstBackoff
	for ctx.Err() == nil {
		p, err := adopt(r.mark())
		if p != nil {
			log.Printf("replica %d (pid %d) runs since an earlier front", r.number, p.pid)
		} else if err == nil {
			p, err = start(r.arguments(), r.mark())
		}
		var lasted time.Duration
		if err == nil {
			lasted, err = r.watch(ctx, p)
			p.stop(ctx.Err() != nil, r.drain)
		}
		r.pool.set(r, stopped, 0)
		r.client.CloseIdleConnections()
		if ctx.Err() != nil {
			return
		}
		if lasted >= steady {
			pause = firstBackoff
		}
		log.Printf("replica %d: %v; it starts again in %v", r.number, err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, r.backoff)
		r.pool.mu.Lock()
		r.restarts++
		r.pool.mu.Unlock()
	}
}

// watch returns when the process has ended, must be killed, or ctx has ended, with the time since it became ready.
func (r *replica) watch(ctx context.Context, p *process) (lasted time.Duration, err error) {
	r.pool.set(r, starting, p.pid)
	begin := time.Now()
	var since time.Time // when it became ready
	defer func() {
		if !since.IsZero() {
			lasted = time.Since(since)
		}
	}()
	failures, probe := 0, minProbe
	for {
		if err = r.probe(ctx); err == nil {
			if since.IsZero() {
				since = time.Now()
				log.Printf("replica %d (pid %d) is ready after %v", r.number, p.pid, since.Sub(begin).Round(time.Millisecond))
			}
			failures, probe = 0, maxProbe
			r.pool.set(r, ready, p.pid)
		} else if failures++; since.IsZero() {
			if time.Since(begin) > r.start {
				return 0, fmt.Errorf("pid %d was not ready within %v: %w", p.pid, r.start, err)
			}
			probe = min(probe*3/2, maxProbe)
		} else {
			r.pool.set(r, failing, p.pid)
			if probe = minProbe; failures >= maxFailures {
				return 0, fmt.Errorf("pid %d does not answer: %w", p.pid, err)
			}
		}
		select {
		case <-p.ended:
			return 0, fmt.Errorf("pid %d ended: %s", p.pid, p.how)
		case <-ctx.Done():
			return 0, nil
		case <-r.check:
		case <-time.After(probe):
		}
	}
}

// probe sends a health request.
func (r *replica) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.healthyIn)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://replica"+r.health, nil)
	if err != nil {
		return err
	}
	answer, err := r.client.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<16))
	if answer.StatusCode != http.StatusOK {
		return errors.New(r.health + " answers " + answer.Status)
	}
	return nil
}

// outcome describes how a process ended.
func outcome(state *os.ProcessState, err error) string {
	if state != nil {
		return state.String()
	}
	return fmt.Sprint(err)
}
