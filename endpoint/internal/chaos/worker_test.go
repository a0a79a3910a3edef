//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// worker is a process that offers endpoints.
type worker struct {
	a        assignment
	r        *reporter
	dev      driver.Device
	registry *endpoint.Registry
	rng      *rand.Rand
	gate     sync.RWMutex // locked for writing while the worker is paused
	base     counts       // after the first offer
	c        *endpoint.Client
	offer    *endpoint.Offer
}

// workerMain is the main function of a worker.
func workerMain(a assignment, r *reporter, commands func() (command, bool)) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	w := &worker{a: a, r: r, dev: dev, rng: rand.New(rand.NewPCG(a.Seed, uint64(a.Index)<<32|uint64(a.Life)<<8|1<<62))}
	if w.registry, err = functions(dev, offered); err != nil {
		return err
	}
	if err := w.begin(); err != nil {
		return err
	}
	w.base = count()
	w.base.Rings = 1
	w.base.Goroutines++ // for the goroutine started next
	go w.work()
	r.send(report{Ready: true})
	for {
		what, ok := commands()
		if !ok {
			os.Exit(0) // the parent has ended
		}
		switch what {
		case pause:
			w.gate.Lock()
		case resume:
			w.gate.Unlock()
		case verify:
			err = w.verify()
		case drop:
			err = awaitCounts(w.base, newsLimit)
		}
		if err != nil {
			return err
		}
		r.send(report{Done: what})
	}
}

// begin connects and offers the endpoints.
func (w *worker) begin() error {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	var err error
	w.c, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: w.a.Socket, Devices: []driver.Device{w.dev}, Wait: true, Label: w.a.String()})
	if err != nil {
		return err
	}
	return w.offerAll(ctx)
}

// offerAll offers the endpoints. It repeats the offer if the owner ends before it answers.
func (w *worker) offerAll(ctx context.Context) (err error) {
	for {
		w.offer, err = w.c.Offer(ctx, w.registry, endpoint.OfferOptions{Calls: 1 + w.rng.IntN(8)})
		if !errors.Is(err, endpoint.ErrUnavailable) {
			return err
		}
	}
}

// work withdraws the endpoints at intervals and offers them again.
func (w *worker) work() {
	for {
		time.Sleep(time.Duration(w.rng.IntN(2000)) * time.Millisecond)
		w.gate.RLock()
		err := w.again()
		w.gate.RUnlock()
		if err != nil {
			w.r.fail("%s: offer again: %v", w.a, err)
		}
	}
}

// again offers the endpoints again, either after running functions have ended or on a new connection.
func (w *worker) again() error {
	if err := w.offer.Err(); err != nil {
		return found("the offer ended: %w", err)
	}
	old := w.offer
	graceful := w.rng.IntN(2) == 0
	if graceful {
		_ = old.Close()
	} else {
		w.c.Close()
	}
	select {
	case <-old.Done():
	case <-time.After(newsLimit):
		return found("the offer has not ended")
	}
	if err := old.Err(); !errors.Is(err, endpoint.ErrClosed) {
		return found("the closed offer reports %w", err)
	}
	if !graceful {
		return w.begin()
	}
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	return w.offerAll(ctx)
}

// verify waits until the owner lists this process as an idle worker of each endpoint.
func (w *worker) verify() error {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	for end := time.Now().Add(newsLimit); ; time.Sleep(20 * time.Millisecond) {
		state, idle, err := w.state(ctx)
		switch {
		case errors.Is(err, endpoint.ErrUnavailable): // the connection is to an owner that has ended
		case err != nil:
			return fmt.Errorf("%s: endpoints while all processes are paused: %w", w.a, err)
		case idle:
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: offer is STALE: of its endpoints the owner has %s: %w", w.a, state, errors.Join(err, w.offer.Err()))
		}
	}
}

// state describes what the owner lists of this process. idle reports whether it lists each endpoint without calls.
func (w *worker) state(ctx context.Context) (state string, idle bool, err error) {
	list, err := w.c.Endpoints(ctx)
	if err != nil {
		return "", false, err
	}
	var b strings.Builder
	own, free := 0, 0
	for _, e := range list {
		if !strings.HasPrefix(e.Name, offered) {
			continue
		}
		for _, p := range e.Workers {
			fmt.Fprintf(&b, "%s of pid %d with %d calls, ", e.Name, p.PID, p.Running)
			if int(p.PID) == os.Getpid() {
				own++
				if p.Running == 0 {
					free++
				}
			}
		}
	}
	return b.String(), own == numFunctions && free == numFunctions, nil
}
