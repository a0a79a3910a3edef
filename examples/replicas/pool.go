//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"
	"strings"
	"sync"
	"time"
)

// errNoReplica means that no replica became ready in time.
var errNoReplica = errors.New("no replica is ready")

// pool selects replicas for requests, in turn.
type pool struct {
	replicas []*replica
	wait     time.Duration

	mu      sync.Mutex
	next    int           // index of the replica for the next request
	changed chan struct{} // closed when a replica becomes ready
}

func newPool(o options) *pool {
	p := &pool{wait: o.wait, changed: make(chan struct{})}
	for n := range o.replicas {
		p.replicas = append(p.replicas, newReplica(o, p, n+1))
	}
	return p
}

// stopAbove stops the replicas of the directory with numbers above n, including replicas of earlier fronts.
func stopAbove(o options, n int) error {
	found, err := marked(func(variable string) bool {
		text, found := strings.CutPrefix(variable, markPrefix(o.dir))
		number, err := strconv.Atoi(text)
		return found && err == nil && number > n
	})
	for _, process := range found {
		log.Printf("pid %d of an earlier front is stopped", process.pid)
		process.stop(true, o.drain)
	}
	return err
}

// pick returns the next replica that is ready, and its process. It waits for one if there is none.
func (p *pool) pick(ctx context.Context) (_ *replica, pid int, err error) {
	timer := time.NewTimer(p.wait)
	defer timer.Stop()
	for {
		p.mu.Lock()
		for range p.replicas {
			r := p.replicas[p.next]
			p.next = (p.next + 1) % len(p.replicas)
			if r.state == ready {
				r.requests++
				pid = r.pid
				p.mu.Unlock()
				return r, pid, nil
			}
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		case <-timer.C:
			return nil, 0, fmt.Errorf("%w after %v: read the log of the front", errNoReplica, p.wait)
		}
	}
}

// set changes the state of a replica.
func (p *pool) set(r *replica, s state, pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == ready && r.state != ready {
		close(p.changed)
		p.changed = make(chan struct{})
	}
	r.state, r.pid = s, pid
}

// suspect excludes a replica that failed to answer a request until it answers a health request. A replica that was
// restarted since is not excluded.
func (p *pool) suspect(r *replica, pid int) {
	p.mu.Lock()
	if r.state == ready && r.pid == pid {
		r.state = failing
	}
	p.mu.Unlock()
	select {
	case r.check <- struct{}{}:
	default: // a check is due already
	}
}

// status describes one replica.
type status struct {
	Replica  int    `json:"replica"`
	State    state  `json:"state"`
	PID      int    `json:"pid"`
	Requests uint64 `json:"requests"`
	Restarts uint64 `json:"restarts"`
}

// statuses describes all replicas.
func (p *pool) statuses() []status {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []status
	for _, r := range p.replicas {
		all = append(all, status{r.number, r.state, r.pid, r.requests, r.restarts})
	}
	return all
}
