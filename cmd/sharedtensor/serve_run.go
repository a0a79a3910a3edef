package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// service is a running owner.
type service struct {
	server *endpoint.Server
	device driver.Device
	models []modelArg
	log    *slog.Logger
	stderr io.Writer
	notify *notifier
	grace  time.Duration
}

// serve owns the models until it is told to stop.
func serve(c *cobra.Command, o serveFlags, models []modelArg) (err error) {
	log, uids, err := o.check(c)
	if err != nil {
		return err
	}
	if err := checkModels(models); err != nil {
		return err
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)

	s := &service{models: models, log: log, stderr: c.ErrOrStderr(), grace: o.grace}
	if s.notify, err = newNotifier(); err != nil {
		log.Warn("the service manager cannot be told", "error", err)
	}
	if s.device, err = openDevice(o.device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.device.Close()) }()
	if s.server, err = bindOwner(o, s.device, uids, log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.server.Close()) }()
	if err := s.publish(c.Context()); err != nil {
		if errors.Is(err, context.Canceled) && c.Context().Err() != nil {
			log.Info("stopped before every model was loaded") // as it was told to, which is no failure
			return nil
		}
		return err
	}
	return s.run(c.Context(), c.OutOrStdout(), reload)
}

// bindOwner takes the socket that the service manager handed over, or makes one.
func bindOwner(o serveFlags, dev driver.Device, uids []uint32, log *slog.Logger) (*endpoint.Server, error) {
	listener, err := activatedListener()
	if err != nil {
		return nil, err
	}
	opts := endpoint.ServerOptions{
		Socket: o.socket, Listener: listener, Devices: []driver.Device{dev}, Retain: o.retain, AllowUIDs: uids,
		Label: "sharedtensor serve", Logger: log,
	}
	if listener != nil && o.socket != "" && o.socket != listener.Addr().String() {
		err := fmt.Errorf("%w: the service manager hands over %s, which is not --socket %s: leave --socket out",
			driver.ErrInvalid, listener.Addr(), o.socket)
		return nil, errors.Join(err, listener.Close())
	}
	if listener == nil && o.socket == "" {
		if opts.Socket, err = endpoint.SocketPath("", dev.Info().Index); err != nil {
			return nil, err
		}
	}
	return endpoint.NewServer(opts)
}

// publish loads every model and makes it the next version of its name. The first failure ends it.
func (s *service) publish(ctx context.Context) error {
	for _, m := range s.models {
		progress := func(done, total int64) { s.notify.progress(m.name, done, total) }
		sd, err := loadModel(ctx, s.device, m, s.stderr, progress)
		if err != nil {
			return err
		}
		if _, err := s.server.PublishFrom(ctx, m.name, sd, m.source()); err != nil { // takes sd
			return err
		}
	}
	return nil
}

// run serves until ctx ends, and then drains.
func (s *service) run(ctx context.Context, stdout io.Writer, reload <-chan os.Signal) error {
	onTerminal := isTerminal(s.stderr)
	ended := make(chan error, 1)
	go func() { ended <- s.server.Serve() }()
	line := servingLine(s.total(), s.bytes(), s.server.Socket(), os.Getpid())
	s.tell("READY=1", "STATUS="+line)
	fmt.Fprintln(stdout, line)
	for {
		select {
		case err := <-ended:
			return err
		case <-reload:
			// A terminal that was closed sends the same signal. Without it nobody could stop the owner with a key.
			if onTerminal && !isTerminal(s.stderr) {
				return s.drain(ctx, ended)
			}
			s.reload(ctx)
		case <-ctx.Done():
			return s.drain(ctx, ended)
		}
	}
}

// reload publishes every model anew. What fails leaves the versions before it in place.
func (s *service) reload(ctx context.Context) {
	s.log.Info("loading every model again")
	err := checkModels(s.models)
	if err == nil {
		err = s.publish(ctx)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("not loaded again; what was served before still is", "error", oneLine(err.Error()))
	}
	s.tell("STATUS=" + servingLine(s.total(), s.bytes(), s.server.Socket(), os.Getpid()))
}

// drain ends the owner: requests in flight have the time of grace. ended is what Serve returns.
func (s *service) drain(ctx context.Context, ended <-chan error) error {
	s.tell("STOPPING=1")
	s.log.Info("stopping", "grace", s.grace)
	cause := fmt.Errorf("requests were still in flight after %v", s.grace)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.grace, cause)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if errors.Is(err, cause) {
		s.log.Warn("cut off", "error", cause)
		err = s.server.Close()
	}
	if end := <-ended; !errors.Is(end, endpoint.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	s.log.Info("stopped")
	return err
}

// tell tells the service manager; that nobody listens there is no reason to stop.
func (s *service) tell(lines ...string) {
	if err := s.notify.tell(lines...); err != nil {
		s.log.Warn("the service manager was not told", "error", err)
	}
}

// total is how many names are published.
func (s *service) total() int {
	n := 0
	for _, m := range s.server.List() {
		if m.Current != 0 {
			n++
		}
	}
	return n
}

// bytes is the size of all versions that are in memory.
func (s *service) bytes() int64 {
	var sum int64
	for _, m := range s.server.List() {
		for _, v := range m.Versions {
			sum += v.Bytes
		}
	}
	return sum
}
