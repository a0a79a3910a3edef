//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
)

// taskTTL is the time for which results of tasks are kept. A short time shortens the pauses.
const taskTTL = 2 * time.Second

// owner is the serving process.
type owner struct {
	a     assignment
	r     *reporter
	dev   driver.Device
	pool  driver.Device // memory of publications
	s     *endpoint.Server
	rng   *rand.Rand
	gate  sync.RWMutex // locked for writing while the owner is paused
	base  counts       // before the first client of another process
	local *client      // uses the owner from this process
	next  uint64       // last salt
}

// ownerMain is the main function of an owner.
func ownerMain(a assignment, r *reporter, commands func() (command, bool)) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	o := &owner{a: a, r: r, dev: dev, pool: newPool(dev), rng: rand.New(rand.NewPCG(a.Seed, uint64(a.Life)<<32|1<<31))}
	registry, err := functions(dev, "")
	if err != nil {
		return err
	}
	var store endpoint.Store
	if a.Keep {
		socket := keeperSocket(a.Socket)
		process, err := keeper.Connect(keeper.Options{Socket: socket, Command: []string{os.Args[0], keepRole, socket}})
		if err != nil {
			return err
		}
		store = process
	}
	// The predecessor holds the socket until it has drained.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		o.s, err = endpoint.NewServer(endpoint.ServerOptions{
			Socket: a.Socket, Devices: []driver.Device{dev}, Registry: registry, Offers: endpoint.AllowOffers, Retain: endpoint.Retention{Versions: a.Life % 3}, Label: a.String(),
			Results: endpoint.ResultOptions{Entries: 64, Bytes: 32 << 20}, Tasks: endpoint.TaskOptions{TTL: taskTTL},
			Keep: store,
		})
		if err == nil {
			break
		}
		if !errors.Is(err, endpoint.ErrInUse) || time.Now().After(end) {
			return err
		}
	}
	served := make(chan error, 1)
	go func() { served <- o.s.Serve(context.Background()) }()
	stop := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() { o.work(stop) })
	if o.local, err = startLocal(a, r, dev); err != nil {
		return fmt.Errorf("the client in this process: %w", err)
	}
	o.base = count()
	o.base.Goroutines++ // of the local client's connection, if it connects again
	r.send(report{Ready: true})
	for {
		c, ok := commands()
		if !ok {
			os.Exit(0) // the parent has ended
		}
		done := report{Done: c}
		switch c {
		case pause:
			o.gate.Lock()
			o.local.gate.Lock()
			done.Salts = o.local.salts.take()
		case resume:
			o.local.gate.Unlock()
			o.gate.Unlock()
		case drop:
			if err := errors.Join(o.local.verify(), o.local.releaseAll()); err != nil {
				return err
			}
			if err := o.rest(); err != nil {
				return err
			}
		case drain:
			close(stop)
			working.Wait()
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(o.rng.IntN(2000))*time.Millisecond)
			defer cancel()
			if err := o.s.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("shut down: %w", err)
			}
			if err := <-served; !errors.Is(err, endpoint.ErrServerClosed) {
				return fmt.Errorf("serve: %w", err)
			}
			r.send(report{Done: drain})
			return nil
		}
		r.send(done)
	}
}

// work publishes, withdraws and destroys at intervals.
func (o *owner) work(stop chan struct{}) {
	ctx := context.Background()
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(o.rng.IntN(20)) * time.Millisecond):
		}
		o.gate.RLock()
		name := fmt.Sprintf("own-%d", o.rng.IntN(3))
		var err error
		switch o.rng.IntN(10) {
		case 0:
			if err = o.s.Withdraw(ctx, name); errors.Is(err, endpoint.ErrNotFound) {
				err = nil
			}
		case 1:
			err = o.destroy(ctx)
		case 2:
			_, err = o.s.InvalidateEndpoint(ctx, "make")
		default:
			err = o.publish(ctx, name)
		}
		o.gate.RUnlock()
		if err != nil {
			o.r.fail("%s: its own %s: %v", o.a, name, err)
		}
	}
}

func (o *owner) publish(ctx context.Context, name string) error {
	o.next++
	salt := mix(o.a.Seed) ^ 1<<63 ^ uint64(o.a.Life)<<32 ^ o.next
	sd, err := makeModel(o.pool, salt)
	if err != nil {
		return err
	}
	version, err := o.s.Publish(ctx, name, sd, endpoint.PublishOptions{})
	err = errors.Join(err, sd.Close())
	if err == nil {
		o.r.send(report{Salts: map[string]uint64{versionKey(o.s.ID(), name, version): salt}})
	}
	return err
}

func (o *owner) destroy(ctx context.Context) error {
	objects, err := o.s.Objects(ctx)
	if err != nil || len(objects) == 0 {
		return err
	}
	if _, err := o.s.Destroy(ctx, objects[o.rng.IntN(len(objects))].ID); !errors.Is(err, endpoint.ErrStale) {
		return err
	}
	return nil
}

// newPool returns a pool for publications and arguments. It keeps memory for a short time, so that pauses are short.
func newPool(dev *host.Device) driver.Device {
	return host.NewPool(dev, host.PoolOptions{Idle: time.Second})
}

// keeperSocket returns the socket of the keeper of an owner.
func keeperSocket(owner string) string { return owner + ".keep" }

// versionKey identifies a version across restarts of the owner.
func versionKey(server, name string, version uint64) string {
	if kept {
		server = "kept"
	}
	return fmt.Sprintf("%s %s %d", server, name, version)
}

// rest withdraws and releases everything, and checks that all counts equal the initial ones. The clients have released
// everything before.
func (o *owner) rest() error {
	ctx := context.Background()
	models, err := o.s.List(ctx)
	if err != nil {
		return err
	}
	for _, m := range models {
		if err := o.s.Withdraw(ctx, m.Name); err != nil && !errors.Is(err, endpoint.ErrNotFound) {
			return err
		}
	}
	names, err := o.s.Endpoints(ctx)
	if err != nil {
		return err
	}
	for _, e := range names {
		if _, err := o.s.InvalidateEndpoint(ctx, e.Name); err != nil {
			return fmt.Errorf("invalidate %s: %w", e.Name, err)
		}
	}
	var clients int
	for end := time.Now().Add(taskTTL + 20*time.Second); ; time.Sleep(50 * time.Millisecond) {
		info, err := o.s.ServerInfo(ctx)
		if err != nil {
			return err
		}
		s := info.Stats
		clients = int(s.Clients)
		if s.Leases+s.Watchers+s.Objects+s.Versions+s.BytesOwned+s.BytesMapped+s.CacheEntries+s.Inflight+s.TasksRunning+s.TasksPending+s.Tasks == 0 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("COUNTS DIFFER: %+v, memory %+v, sessions %+v\n%s", s, info.Memory, info.Sessions, stacks())
		}
	}
	// Each client has one connection, and at most three goroutines.
	return awaitCounts(counts{Files: o.base.Files + clients, Maps: o.base.Maps, Rings: clients, Goroutines: o.base.Goroutines + 3*clients}, 10*time.Second)
}
