// Package endpointtest helps a program to test what it does with package endpoint: with an owner of its own, or with a
// stand-in for one.
//
//	o := endpointtest.Start(t, endpoint.ServerOptions{Registry: functions})
//	y, err := endpoint.Call[float64](t.Context(), o.Client, "norm", x)
//
// The owner and its client are those of a program: the same checks, encodings, caches, tasks, leases and errors.
// Nothing crosses to another process, and no test disturbs another.
package endpointtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Owner is an owner in this process that serves on a socket of its own, and a client of it.
type Owner struct {
	// Server is the owner. Borrowed.
	Server *endpoint.Server
	// Client is connected to it, within the process, with a session of its own. Borrowed.
	Client *endpoint.Client
	// Device is the first of the owner's devices: host memory, where the options named none. Borrowed.
	Device driver.Device

	dir    string
	opened bool // Device was opened here
	served chan struct{}
}

// Open begins an owner. A socket in a fresh directory and host memory stand for what the options leave out. The caller
// closes it. Errors are those of [endpoint.NewServer] and [endpoint.Dial], and errors.ErrUnsupported where there is no
// shared host memory.
func Open(opts endpoint.ServerOptions) (_ *Owner, err error) {
	o := new(Owner)
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	if opts.Socket == "" {
		if o.dir, err = os.MkdirTemp("", "endpointtest"); err != nil { // short enough for the path of a socket
			return nil, err
		}
		opts.Socket = filepath.Join(o.dir, "owner.sock")
	}
	if len(opts.Devices) == 0 {
		dev, err := host.Open()
		if err != nil {
			return nil, err
		}
		o.opened = true
		opts.Devices = []driver.Device{dev}
	}
	o.Device = opts.Devices[0]
	if o.Server, err = endpoint.NewServer(opts); err != nil {
		return nil, err
	}
	o.served = make(chan struct{})
	go func() {
		defer close(o.served)
		_ = o.Server.Serve(context.Background()) // ends with Close
	}()
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	o.Client, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: opts.Socket, Devices: opts.Devices, Logger: opts.Logger})
	return o, err
}

// dialLimit is how long connecting may take, on a machine that is busy.
const dialLimit = time.Minute

// Close ends the client and the owner, and removes the socket. What the test has of their memory stays valid, where the
// device is its own; else it has to be closed before. A second Close is nil.
func (o *Owner) Close() error {
	var errs []error
	if o.Client != nil {
		errs = append(errs, o.Client.Close())
	}
	if o.Server != nil {
		errs = append(errs, o.Server.Close())
		<-o.served
	}
	if o.opened {
		errs = append(errs, o.Device.Close())
		o.opened = false
	}
	if o.dir != "" {
		errs = append(errs, os.RemoveAll(o.dir))
	}
	return errors.Join(errs...)
}

// Start is [Open] for a test: what fails ends the test, and the owner is closed with it. Where there is no shared host
// memory the test is skipped.
func Start(t testing.TB, opts endpoint.ServerOptions) *Owner {
	t.Helper()
	o, err := Open(opts)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}
