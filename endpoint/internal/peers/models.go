package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// modelPlan is the amount of work in measurements of publications, watchers, clients and loads.
type modelPlan struct {
	bytes    int64 // size of the published model
	versions int   // publications per turn
	watchers int
	switches int   // versions per turn that the watchers switch to
	clients  int   // concurrent clients, each with its own connection
	file     int64 // size of the loaded file
	loads    int   // maximum number of load rounds
}

// modelFigures are the measurements of models in each round.
type modelFigures struct {
	again, fresh, againFilled, freshFilled []float64 // versions per second
	switches                               []samples // time from the publication until each watcher has read the version
	few, many                              []float64 // calls per second of ten clients, and of all
	warm, plain, cold, coldStreamer        []samples // duration of a load
	noStreamer                             string    // reason why the streamer was not measured
}

// fewClients is the number of clients with which many clients are compared.
const fewClients = 10

// allPublications measures a client that publishes versions of one size in sequence, in reused memory and in fresh
// memory, both unchanged and with every byte written.
func (b *bench) allPublications(ctx context.Context, progress func(string)) error {
	progress("publishing again and again")
	c := b.subject("endpoint").client.(oursClient)
	pool := host.NewPool(c.dev.(*host.Device), host.PoolOptions{})
	defer pool.Close()
	for range b.plan.rounds {
		for _, one := range []struct {
			dev  driver.Device
			fill bool
			to   *[]float64
		}{
			{pool, false, &b.models.again},
			{c.dev, false, &b.models.fresh},
			{pool, true, &b.models.againFilled},
			{c.dev, true, &b.models.freshFilled},
		} {
			rate, err := c.publishRate(ctx, one.dev, b.plan.models, one.fill)
			if err != nil {
				return fmt.Errorf("publish: %w", err)
			}
			*one.to = append(*one.to, rate)
		}
	}
	return c.Withdraw(ctx, "again")
}

// publishRate publishes versions and returns the number per second.
func (c oursClient) publishRate(ctx context.Context, dev driver.Device, p modelPlan, fill bool) (float64, error) {
	var start time.Time
	const warm = 4
	for i := range warm + p.versions {
		if i == warm {
			start = time.Now()
		}
		if _, err := c.publishBytes(ctx, dev, "again", p.bytes, uint8(i), fill); err != nil {
			return 0, err
		}
	}
	return float64(p.versions) / time.Since(start).Seconds(), nil
}

// publishBytes publishes one tensor with the given value in all bytes, or only in the first and the last.
func (c oursClient) publishBytes(ctx context.Context, dev driver.Device, name string, size int64, value uint8, fill bool) (version uint64, err error) {
	sd, err := module.Empty(dev, []module.NamedSpec{{Name: "w", DType: tensor.Uint8, Shape: tensor.Shape{size}}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, sd.Close()) }()
	x, _ := sd.Get("w")
	data, err := tensor.Data[uint8](x)
	if err != nil {
		return 0, err
	}
	data[0], data[len(data)-1] = value, value
	if fill {
		fillBytes(data, value)
	}
	return c.Publish(ctx, name, sd)
}

// connect dials n clients. The caller closes them.
func (b *bench) connect(n int) (closers, []oursClient, error) {
	var all closers
	var list []oursClient
	for range n {
		c, err := dialOurs(filepath.Join(b.dir, "0"), "take", wire.Limits{}) // socket of the first peer
		if err != nil {
			return nil, nil, errors.Join(err, all.Close())
		}
		all, list = append(all, c), append(list, c.(oursClient))
	}
	return all, list, nil
}

// arrival records that a watcher has read a version.
type arrival struct {
	at  time.Time
	err error
}

// allSwitches measures the time until each of many watchers has acquired and read a new version.
func (b *bench) allSwitches(ctx context.Context, progress func(string)) error {
	p := b.plan.models
	progress(fmt.Sprintf("%d watchers switch to a new version", p.watchers))
	publisher := b.subject("endpoint").client.(oursClient)
	all, clients, err := b.connect(p.watchers)
	if err != nil {
		return err
	}
	defer all.Close()
	if _, err := publisher.publishBytes(ctx, publisher.dev, "switch", 1<<20, 0, false); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	arrivals := make(chan arrival, p.watchers)
	for _, c := range clients {
		w, err := c.Watch(ctx, "switch")
		if err != nil {
			return err
		}
		watching.Go(func() {
			defer w.Close()
			c.follow(ctx, w, arrivals)
		})
	}
	wait := func(from time.Time) (samples, error) {
		var turn samples
		for range p.watchers {
			select {
			case a := <-arrivals:
				if a.err != nil {
					return nil, a.err
				}
				turn = append(turn, a.at.Sub(from))
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		return turn, nil
	}
	if _, err := wait(time.Now()); err != nil { // of the initial version
		return err
	}
	for range b.plan.rounds {
		var round samples
		for i := range p.switches {
			start := time.Now()
			if _, err := publisher.publishBytes(ctx, publisher.dev, "switch", 1<<20, uint8(i), false); err != nil {
				return err
			}
			turn, err := wait(start)
			if err != nil {
				return err
			}
			round = append(round, turn...)
		}
		b.models.switches = append(b.models.switches, round)
	}
	return nil
}

// follow acquires and reads each announced version until ctx ends or an error occurs.
func (c oursClient) follow(ctx context.Context, w *endpoint.Watcher, arrivals chan<- arrival) {
	for e, err := range w.Events(ctx) {
		if ctx.Err() != nil {
			return
		}
		if err == nil && e.Kind == endpoint.EventPublished {
			err = c.readOnce(ctx, e.Name)
		}
		select {
		case arrivals <- arrival{time.Now(), err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// readOnce acquires the newest version and reads both ends of it.
func (c oursClient) readOnce(ctx context.Context, name string) error {
	h, err := c.Acquire(ctx, name)
	if err != nil {
		return err
	}
	x, _ := h.StateDict().Get("w")
	data, err := tensor.Data[uint8](x)
	if err == nil && data[0] != data[len(data)-1] {
		err = errors.New("a version contains bytes of another")
	}
	return errors.Join(err, h.Close())
}

// allClients measures calls of few and of many clients, each with a separate connection and one caller.
func (b *bench) allClients(ctx context.Context, progress func(string)) error {
	p := b.plan.models
	progress(fmt.Sprintf("%d clients", p.clients))
	all, clients, err := b.connect(p.clients)
	if err != nil {
		return err
	}
	defer all.Close()
	for _, c := range clients {
		if _, err := c.echo(ctx, smallData); err != nil {
			return err
		}
	}
	for range b.plan.rounds {
		for _, one := range []struct {
			clients []oursClient
			to      *[]float64
		}{{clients[:min(fewClients, len(clients))], &b.models.few}, {clients, &b.models.many}} {
			rate, err := callAtOnce(ctx, one.clients, b.plan.span)
			if err != nil {
				return err
			}
			*one.to = append(*one.to, rate)
		}
	}
	// Unlike the rate, the processor time does not depend on the machine's other load.
	for _, some := range [][]oursClient{clients[:min(fewClients, len(clients))], clients} {
		cost, err := b.costAtOnce(ctx, some)
		if err != nil {
			return err
		}
		progress(fmt.Sprintf("a call of %d clients takes %s of processor time", len(some), short(cost)))
	}
	return nil
}

// costAtOnce returns the processor time of a call in both processes while all clients call concurrently.
func (b *bench) costAtOnce(ctx context.Context, clients []oursClient) (time.Duration, error) {
	server := b.subject("endpoint").server
	theirs, err := server.spent()
	if err != nil {
		return 0, err
	}
	mine, start := spent(), time.Now()
	rate, err := callAtOnce(ctx, clients, b.plan.span)
	if err != nil {
		return 0, err
	}
	ours, calls := spent().since(mine), rate*time.Since(start).Seconds()
	now, err := server.spent()
	if err != nil {
		return 0, err
	}
	return time.Duration(float64(ours.processor+now.since(theirs).processor) / max(calls, 1)), nil
}

// callAtOnce calls from all clients for span and returns the number of calls per second.
func callAtOnce(ctx context.Context, clients []oursClient, span time.Duration) (float64, error) {
	var wait sync.WaitGroup
	counts, failures := make([]int, len(clients)), make([]error, len(clients))
	start := time.Now()
	for i, c := range clients {
		wait.Go(func() {
			for time.Since(start) < span && failures[i] == nil {
				_, failures[i] = c.echo(ctx, smallData)
				counts[i]++
			}
		})
	}
	wait.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(start).Seconds(), errors.Join(failures...)
}

// baselineSwitch is the best 99th percentile of a switch of 100 watchers before switches were optimized, on a machine
// with two processors at 2 GHz.
const baselineSwitch = 19 * time.Millisecond

func (b *bench) modelTargets() []target {
	m, p := &b.models, b.plan.models
	var p99 samples
	for _, round := range m.switches {
		p99 = append(p99, quantile(round, 0.99))
	}
	switched := quantile(p99, 0.5)
	return []target{
		{
			Name: fmt.Sprintf("publish %s again and again", byteSize(p.bytes)), Value: quantile(m.again, 0.5), Unit: "versions/s", Rival: "the same in fresh memory",
			Ratio: rateRatio(m.again, m.fresh), Target: 10, AtLeast: true,
		},
		{
			Name:  fmt.Sprintf("publish %s again and again, every byte written", byteSize(p.bytes)),
			Value: quantile(m.againFilled, 0.5), Unit: "versions/s", Rival: "the same in fresh memory",
			Ratio: rateRatio(m.againFilled, m.freshFilled), Target: 1, AtLeast: true,
		},
		{
			Name: fmt.Sprintf("switch of %d watchers to a new version, p99", p.watchers), Value: float64(switched) / float64(time.Microsecond), Unit: "µs",
			Rival: "itself when the target was set, " + short(baselineSwitch), Ratio: float64(switched) / float64(baselineSwitch), Target: 0.2,
		},
		{
			Name: fmt.Sprintf("%d clients", p.clients), Value: quantile(m.many, 0.5), Unit: "calls/s", Rival: fmt.Sprintf("%d clients", fewClients),
			Ratio: rateRatio(m.many, m.few), Target: 0.8, AtLeast: true,
		},
		{
			Name: "load " + byteSize(p.file) + ", warm", Value: micros(m.warm), Unit: "µs", Rival: "plain read by one thread",
			Ratio: ratio(m.plain, m.warm), Target: 1.2, AtLeast: true,
		},
		{
			Name: "load " + byteSize(p.file) + ", cold", Value: micros(m.cold), Unit: "µs", Rival: streamerName,
			Ratio: ratio(m.coldStreamer, m.cold), Target: 1, AtLeast: true, Skipped: m.noStreamer,
		},
	}
}
