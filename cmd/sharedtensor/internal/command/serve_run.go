package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/systemd"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/internal/logs"
)

// service is a running owner.
type service struct {
	server *endpoint.Server
	device driver.Device
	models []modelArg
	log    *slog.Logger
	stderr io.Writer
	notify *systemd.Notifier
	grace  time.Duration
	// keeper is the process that keeps the versions for the next owner, if any.
	keeper interface{ PID() int }
	// unchanged are the models that an earlier owner has loaded from the same files.
	unchanged map[string]uint64
	// policy is the path of the policy file; empty for none.
	policy string
	// auditFile is the file of the audit log; nil for none.
	auditFile *logs.File
	// digests enables computing digests of published models.
	digests bool
	// first is set after this process was replaced, if it must stay as the parent of the process that serves.
	first *first
}

// serve owns the models until it is stopped. If it was replaced by a process that needs this one as its parent, it returns
// that duty.
func serve(c *cobra.Command, o serveFlags, out *streams, models []modelArg) (next *first, err error) {
	log, uids, err := o.check(c)
	if err != nil {
		return nil, err
	}
	if err := checkModels(models); err != nil {
		return nil, err
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	upgrade := make(chan os.Signal, 1)
	notifyUpgrade(upgrade)
	defer signal.Stop(upgrade)

	s := &service{models: models, log: log, stderr: out.progress(), grace: o.grace, digests: o.digests, policy: o.policy}
	if s.notify, err = systemd.NewNotifier(); err != nil {
		log.Warn("cannot notify the service manager", "error", err)
	}
	if s.device, err = cli.OpenDevice(o.device); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.device.Close()) }()
	places, opened, err := openPlaces(o.places, s.device)
	defer func() { err = errors.Join(err, closeAll(opened)) }()
	if err != nil {
		return nil, err
	}
	var store closableStore
	if o.keep == keepSystemd {
		store, err = openSystemd()
	} else if dir, is := strings.CutPrefix(o.keep, keepDir); is {
		store, err = openDirectory(dir)
	}
	if err != nil {
		return nil, err
	}
	opts, err := ownerOptions(o, s.device, uids, log)
	if err != nil {
		return nil, err
	}
	audit, file, err := openAudit(o.audit, log)
	if err != nil {
		return nil, err
	}
	if file != nil {
		s.auditFile = file
		defer func() { err = errors.Join(err, file.Close()) }()
	}
	opts.Placements, opts.Devices = places, append(opts.Devices, opened...)
	opts.Audit, opts.RequireAudit, opts.LogLost = audit, o.requireAudit, out.lost
	if o.keep == keepProcess || o.keep == keepConnect {
		if store, err = openKeeper(opts.Socket, o.keep == keepConnect, log); err != nil {
			return nil, err
		}
	}
	if store != nil {
		opts.Keep = store
		defer func() { err = errors.Join(err, store.Close()) }()
	}
	s.keeper, _ = store.(interface{ PID() int })
	if s.server, err = endpoint.NewServer(opts); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.server.Close()) }()
	s.adopt()
	err = s.run(c.Context(), c.OutOrStdout(), reload, upgrade)
	return s.first, err
}

// adopt logs the models that the previous owner has left, and finds those whose files have not changed.
func (s *service) adopt() {
	s.unchanged = map[string]uint64{}
	for _, a := range s.server.Adopted() {
		s.log.Info("adopted", "name", a.Name, "version", a.Version, "source", a.Source)
		for _, m := range s.models {
			if m.name == a.Name && a.Current && a.SourceID != "" && a.SourceID == m.sourceID() {
				s.unchanged[m.name] = a.Version
			}
		}
	}
}

// ownerOptions returns the options of the owner, with the socket that the service manager passed, if any.
func ownerOptions(o serveFlags, dev driver.Device, uids []uint32, log *slog.Logger) (opts endpoint.ServerOptions, err error) {
	policy, err := loadPolicy(o.policy)
	if err != nil {
		return opts, err
	}
	listener, err := systemd.ActivatedListener()
	if err != nil {
		return opts, err
	}
	opts = endpoint.ServerOptions{
		Socket: o.socket, Listener: listener, Devices: []driver.Device{dev}, Retain: o.retain.limits(), AllowUIDs: uids,
		Offers: o.permitted(), Policy: policy, LockWait: o.lockWait,
		Label: "sharedtensor serve", Logger: log,
	}
	if listener != nil && o.socket != "" && o.socket != listener.Addr().String() {
		err := fmt.Errorf("%w: the service manager passed %s, which is not --socket %s: omit --socket",
			driver.ErrInvalid, listener.Addr(), o.socket)
		return opts, errors.Join(err, listener.Close())
	}
	if inherited := endpoint.Inherited(); inherited != "" && opts.Socket == "" {
		opts.Socket = inherited
	}
	switch {
	case opts.Socket != "":
	case listener != nil:
		opts.Socket = listener.Addr().String()
	default:
		opts.Socket, err = endpoint.SocketPath("", dev.Info().Index)
	}
	return opts, err
}

// run serves until ctx ends, and then drains. Models are loaded concurrently.
func (s *service) run(ctx context.Context, stdout io.Writer, reload, upgrade <-chan os.Signal) error {
	onTerminal := term.IsTerminal(s.stderr)
	ended := make(chan error, 1)
	l := s.newLoader(ctx)
	defer l.stop()
	l.start() // before Serve: clients wait only for models that are announced
	go func() { ended <- s.server.Serve(context.Background()) }()
	u := &upgrader{service: s, loads: l, ended: make(chan error, 1)}
	s.log.Info("answering", "socket", s.server.Socket(), "models", len(s.models))
	for {
		select {
		case err := <-ended:
			if u.running {
				return u.wait()
			}
			return err
		case <-upgrade:
			u.start(ctx)
		case err := <-u.ended:
			if u.end(err) {
				return nil
			}
		case pass := <-l.passes:
			first := l.end()
			if first && len(s.models) > 0 && len(pass.failed) == len(s.models) && ctx.Err() == nil {
				l.stop()
				return errors.Join(pass.err(), s.drain(ctx, ended))
			}
			s.report(pass, first, stdout)
		case <-reload:
			// Closing the terminal also sends SIGHUP. Stop then, because the owner can no longer be stopped by a key.
			if onTerminal && !term.IsTerminal(s.stderr) {
				l.stop()
				return s.drain(ctx, ended)
			}
			s.reopenAudit()
			s.reloadPolicy()
			s.log.Info("loading all models again")
			l.start()
		case <-ctx.Done():
			if u.running && u.end(<-u.ended) {
				return nil
			}
			if l.stop() {
				s.log.Info("stopped before all models were loaded") // requested, not a failure
			}
			return s.drain(ctx, ended)
		}
	}
}

// report logs the changes of a pass over the models. After the first pass it also reports that the owner is ready.
func (s *service) report(pass loadPass, first bool, stdout io.Writer) {
	names, bytes := s.served()
	line := servingLine(names, bytes, s.server.Socket(), os.Getpid())
	if len(pass.failed) > 0 {
		line += fmt.Sprintf("; not loaded: %s", strings.Join(pass.failed, ", "))
		for _, err := range pass.errs {
			s.log.Error("not loaded; a previous version, if any, is still served", "error", cli.OneLine(err.Error()))
		}
	}
	if !first {
		s.log.Info("loaded again", "changed", strings.Join(pass.published, ", "), "not changed", strings.Join(pass.failed, ", "))
		s.tell("STATUS=" + line)
		return
	}
	s.tell("READY=1", "STATUS="+line)
	fmt.Fprintln(stdout, line)
}

// drain shuts the owner down. Requests in flight have the grace period to complete. ended receives the result of Serve.
func (s *service) drain(ctx context.Context, ended <-chan error) error {
	s.tell("STOPPING=1")
	s.log.Info("stopping", "grace", s.grace)
	cause := fmt.Errorf("requests are still in flight after %v", s.grace)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.grace, cause)
	defer cancel()
	names, bytes := s.served()
	err := s.server.Shutdown(ctx)
	if errors.Is(err, cause) {
		s.log.Warn("grace period ended", "error", cause)
		err = s.server.Close()
	}
	if end := <-ended; !errors.Is(end, endpoint.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	s.log.Info("stopped")
	if s.keeper != nil && names > 0 {
		s.log.Info("the keeper holds the models for the next owner; end it to free the memory", "keeper", s.keeper.PID(), "models", names, "bytes", bytes)
	}
	return err
}

// tell notifies the service manager. It only logs failures.
func (s *service) tell(lines ...string) {
	if err := s.notify.Tell(lines...); err != nil {
		s.log.Warn("cannot notify the service manager", "error", err)
	}
}

// served returns the number of published names, and the bytes of all versions in memory.
func (s *service) served() (names int, bytes int64) {
	models, _ := s.server.List(context.Background()) // fails only if its context ends
	for _, m := range models {
		if m.Current != 0 {
			names++
		}
		for _, v := range m.Versions {
			bytes += v.Bytes
		}
	}
	return names, bytes
}
