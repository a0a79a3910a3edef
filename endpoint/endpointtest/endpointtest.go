// Package endpointtest provides owners and a test double for tests of programs that use package endpoint.
//
//	o := endpointtest.Start(t, endpoint.ServerOptions{Registry: functions})
//	y, err := endpoint.Call[float64](t.Context(), o.Client, "norm", x)
//
// The owner and its client are real, with the same checks, encodings, caches, tasks, leases and errors. They run in the
// test's process, and tests do not affect each other.
//
// StartProcess runs an owner in its own process, for tests in which it is killed and restarted:
//
//	p := endpointtest.StartProcess(t) // TestMain calls endpointtest.RunOwner(owner)
//	p.Kill()                          // requests fail with endpoint.ErrUnavailable, or wait
//	p.Restart()                       // clients reconnect
//
// [Fake] stands for an owner that only runs functions. For a program that acquires and follows models, a server without a
// socket is the double: publish on it, and pass it where the program takes [endpoint.Models].
//
//	s, err := endpoint.NewServer(endpoint.ServerOptions{Local: true, Devices: devices})
//
// [Leaks] checks that a test leaves no descriptors, mappings or goroutines.
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

// Owner is a server in this process on a private socket, and a client of it.
type Owner struct {
	// Server is the server. It is borrowed.
	Server *endpoint.Server
	// Client is connected to Server within the process, in a separate session. It is borrowed.
	Client *endpoint.Client
	// Device is the first of the server's devices: host memory if the options named none. It is borrowed.
	Device driver.Device

	dir    string
	opened bool // Device was opened by Open
	served chan struct{}
}

// Open starts an owner. By default it uses a socket in a new directory and host memory. The caller closes it. Errors
// are those of [endpoint.NewServer] and [endpoint.Dial], and errors.ErrUnsupported if the system has no shared host
// memory.
func Open(opts endpoint.ServerOptions) (_ *Owner, err error) {
	o := new(Owner)
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	if opts.Socket == "" {
		if o.dir, err = os.MkdirTemp("", "endpointtest"); err != nil { // short enough for a socket path
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

// dialLimit limits the time to connect on a busy machine.
const dialLimit = time.Minute

// Close closes the client and the server and removes the socket. The test's memory stays valid if it passed its own
// device. Otherwise, close it first. A second Close returns nil.
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

// Start is [Open] for a test: a failure ends the test, and the test's cleanup closes the owner. If the system has no
// shared host memory, the test is skipped.
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
