package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// wish is something that a client tries to do.
type wish struct{ Do, Name string }

// tryOp runs an operation of a client and returns its result.
var tryOp = fixture.NewOp("try", func(w *fixture.Worker, ctx context.Context, in wish) (seen string, err error) {
	c := w.Client
	switch in.Do {
	case "info":
		_, err = c.ServerInfo(ctx)
	case "list":
		models, e := c.List(ctx)
		for _, m := range models {
			seen += m.Name + " "
		}
		err = e
	case "describe":
		_, err = c.Info(ctx, in.Name)
	case "endpoints":
		list, e := c.Endpoints(ctx)
		for _, e := range list {
			seen += e.Name + " "
		}
		err = e
	case "rollback":
		_, err = c.Rollback(ctx, in.Name, 0)
	case "call":
		_, err = endpoint.Call[int](ctx, c, in.Name, map[string]int{"a": 1, "b": 2})
	case "submit":
		task, e := c.Submit(ctx, in.Name, map[string]int{"a": 1})
		if err = e; err == nil {
			seen = task.ID
		}
	case "task":
		_, err = c.Task(in.Name).Info(ctx)
	case "tasks":
		tasks, e := c.Tasks(ctx, endpoint.TaskFilter{})
		seen, err = fmt.Sprint(len(tasks)), e
	case "invalidate":
		_, err = c.InvalidateEndpoint(ctx, in.Name)
	case "offer":
		r := endpoint.NewRegistry()
		if err = endpoint.Register(r, in.Name, func(_ context.Context, in map[string]int) (int, error) { return len(in), nil }); err == nil {
			_, err = c.Offer(ctx, r, endpoint.OfferOptions{})
		}
	case "watch":
		watch, e := c.Watch(ctx, strings.Fields(in.Name)...)
		if err = e; err != nil {
			break
		}
		defer watch.Close()
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		for event, e := range watch.Events(short) {
			if e != nil {
				break
			}
			seen += event.Name + " "
		}
	default:
		err = errors.New("unknown wish " + in.Do)
	}
	return seen, err
})

// asMember makes a child a process of a user with supplementary groups.
func asMember(t *testing.T, uid, gid uint32, groups ...uint32) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		fixture.AsUser(t, uid)(cmd)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}
	}
}

// auditLog collects lines of JSON.
type auditLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (a *auditLog) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.Write(p)
}

// lines returns the changes that a user has made, each with its name.
func (a *auditLog) lines(t *testing.T, uid uint32) (list []string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for line := range strings.Lines(a.text.String()) {
		var got struct {
			Msg, Change, Name, Exe string
			UID, GID               uint32
			PID                    int
		}
		require.NoError(t, json.Unmarshal([]byte(line), &got))
		require.Equal(t, "audit", got.Msg)
		if got.UID != uid {
			continue
		}
		require.Positive(t, got.PID)
		require.NotEmpty(t, got.Exe)
		require.NotEqual(t, "unknown", got.Exe, "the process runs")
		list = append(list, got.Change+" "+got.Name)
	}
	return list
}

const (
	trainer, reader, worker1, monitor, stranger = 61001, 61002, 61003, 61004, 61005 // users
	readers                                     = 62000                             // a group
)

// policyServer serves models and endpoints to other users.
func policyServer(t *testing.T, policy *access.Policy, audit *auditLog) *endpoint.Server {
	t.Helper()
	fixture.NeedsRoot(t)
	fixture.HostOnly(t, "the other users cannot read the stand-in for the driver")
	r := endpoint.NewRegistry()
	add := func(_ context.Context, in map[string]int) (n int, _ error) {
		for _, v := range in {
			n += v
		}
		return n, nil
	}
	require.NoError(t, endpoint.Register(r, "add", add))
	require.NoError(t, endpoint.Register(r, "secret", add, endpoint.AsTask()))
	opts := endpoint.ServerOptions{
		Policy: policy, Registry: r, Logger: fixture.Discard(), Retain: endpoint.Retention{Versions: 1},
	}
	if audit != nil {
		opts.Audit = slog.New(slog.NewJSONHandler(audit, nil))
	}
	s := fixture.Serve(t, opts)
	require.NoError(t, os.Chmod(filepath.Dir(s.Socket()), 0o711))
	return s
}

// publishAs publishes a small model by the server itself.
func publishAs(t *testing.T, s *endpoint.Server, name string) {
	t.Helper()
	sd, err := fixture.Synthetic(fixture.Device(t), fixture.Model{Seed: 1})
	require.NoError(t, err)
	defer sd.Close()
	_, err = s.Publish(context.Background(), name, sd, endpoint.PublishOptions{})
	require.NoError(t, err)
}

// visitor starts a process of a user that is connected to the server.
func visitor(t *testing.T, s *endpoint.Server, as func(*exec.Cmd)) *fixture.Child {
	t.Helper()
	c := fixture.Start(t, as)
	c.DialWith(fixture.Dialing{Socket: s.Socket(), UIDs: []uint32{uint32(os.Getuid())}})
	return c
}

func try(c *fixture.Child, do, name string) error {
	c.T.Helper()
	return fixture.Attempt(c, tryOp, wish{do, name})
}

func sees(c *fixture.Child, do, name string) string {
	c.T.Helper()
	return strings.TrimSpace(tryOp.Must(c.Process, wish{do, name}))
}

// Processes of five users, each with the rights of its rules: what a rule gives succeeds, everything else fails with
// ErrPermission before it has an effect, and is counted by right. Each change is one line of the audit log.
func TestPolicyBetweenUsers(t *testing.T) {
	t.Parallel()
	audit := &auditLog{}
	s := policyServer(t, &access.Policy{Rules: []access.Rule{
		{UIDs: []uint32{trainer}, Publish: []string{"llm-*"}, Withdraw: []string{"llm-*"}, List: []string{"llm-*"}},
		{GIDs: []uint32{readers}, Acquire: []string{"llm-*", "base"}, Call: []string{"add"}},
		{UIDs: []uint32{worker1}, Offer: []string{"work*"}},
		{UIDs: []uint32{monitor}, Info: true, List: []string{"*"}},
	}}, audit)
	publishAs(t, s, "base")
	publishAs(t, s, "secret")

	var denied int
	forbidden := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, endpoint.ErrPermission)
		denied++
	}
	train := visitor(t, s, fixture.AsUser(t, trainer))
	read := visitor(t, s, asMember(t, reader, 100, 7, readers)) // by a supplementary group
	work := visitor(t, s, fixture.AsUser(t, worker1))
	watch := visitor(t, s, fixture.AsUser(t, monitor))

	// a trainer
	require.EqualValues(t, 1, train.Publish(fixture.Model{Name: "llm-a", Seed: 1}))
	require.EqualValues(t, 2, train.Publish(fixture.Model{Name: "llm-a", Seed: 2}))
	require.NoError(t, try(train, "rollback", "llm-a"))
	forbidden(train.PublishError(fixture.Model{Name: "base", Seed: 1}))
	forbidden(try(train, "rollback", "base"))
	forbidden(fixture.Failure(train, fixture.WithdrawOp, "base"))
	forbidden(train.AcquireError(fixture.Acquisition{Name: "llm-a", Key: "h"}))
	forbidden(try(train, "call", "add"))
	forbidden(try(train, "describe", "base"))
	forbidden(try(train, "describe", "missing")) // the same error as for a name that exists
	forbidden(try(train, "info", ""))
	require.Equal(t, "llm-a", sees(train, "list", ""))
	require.Empty(t, sees(train, "endpoints", ""))
	require.Equal(t, "llm-a", sees(train, "watch", ""), "a watch of all names shows the visible ones")
	forbidden(try(train, "watch", "base"))

	// a reader
	read.Acquire(fixture.Acquisition{Name: "base", Key: "h"})
	read.Check("h", fixture.Model{Seed: 1})
	read.Acquire(fixture.Acquisition{Name: "llm-a", Key: "l"})
	forbidden(read.AcquireError(fixture.Acquisition{Name: "secret", Key: "s"}))
	forbidden(read.PublishError(fixture.Model{Name: "llm-a", Seed: 3}))
	require.Equal(t, "base llm-a", sees(read, "list", ""))
	require.Equal(t, "add", sees(read, "endpoints", ""))
	require.NoError(t, try(read, "call", "add"))
	require.NoError(t, try(read, "submit", "add"))
	forbidden(try(read, "call", "secret"))
	forbidden(try(read, "call", "missing"))
	forbidden(try(read, "submit", "secret"))
	forbidden(try(read, "invalidate", "secret"))
	forbidden(try(read, "offer", "add-more"))

	// a worker
	require.NoError(t, try(work, "offer", "work-1"))
	forbidden(try(work, "offer", "other"))
	forbidden(try(work, "call", "work-1"))

	// a monitor
	require.NoError(t, try(watch, "info", ""))
	require.Equal(t, "base llm-a secret", sees(watch, "list", ""))
	forbidden(watch.AcquireError(fixture.Acquisition{Name: "base", Key: "h"}))

	// a task belongs to its submitter; others need the right to call its endpoint
	id := sees(read, "submit", "add")
	require.NoError(t, try(read, "task", id))
	forbidden(try(train, "task", id))
	require.Equal(t, "0", sees(train, "tasks", ""))
	require.Equal(t, "2", sees(read, "tasks", ""))

	require.NoError(t, fixture.Attempt(train, fixture.WithdrawOp, "llm-a"))

	err := fixture.Start(t, fixture.AsUser(t, stranger)).DialError(fixture.Dialing{Socket: s.Socket(), UIDs: []uint32{uint32(os.Getuid())}})
	forbidden(err)
	require.ErrorContains(t, err, "no rule for uid 61005")

	info, err := s.ServerInfo(context.Background())
	require.NoError(t, err)
	counted := 0
	for _, r := range info.Refusals {
		counted += int(r.Count)
		if r.Right == "connect" {
			require.EqualValues(t, 1, r.Count)
		}
	}
	require.Equal(t, denied, counted, "%+v", info.Refusals)
	require.Equal(t, []string{"publish llm-a", "publish llm-a", "rollback llm-a", "withdraw llm-a"}, audit.lines(t, trainer))
	require.Equal(t, []string{"offer work-1"}, audit.lines(t, worker1))
	require.Empty(t, audit.lines(t, reader))
	require.Empty(t, audit.lines(t, monitor))
	require.Equal(t, []string{"publish base", "publish secret"}, audit.lines(t, uint32(os.Getuid())))
}

// A new policy applies to the next request, and ends the sessions of users that may no longer connect. Memory that they
// hold stays valid.
func TestPolicyReload(t *testing.T) {
	t.Parallel()
	rule := func(uid uint32) access.Rule {
		return access.Rule{UIDs: []uint32{uid}, Acquire: []string{"*"}, Offer: []string{"work"}, Publish: []string{"m"}}
	}
	s := policyServer(t, &access.Policy{Rules: []access.Rule{rule(trainer), rule(reader), rule(worker1)}}, nil)
	publishAs(t, s, "m")
	stays, goes, works := visitor(t, s, fixture.AsUser(t, trainer)), visitor(t, s, fixture.AsUser(t, reader)), visitor(t, s, fixture.AsUser(t, worker1))
	stays.Publish(fixture.Model{Name: "m", Seed: 2})
	goes.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
	require.NoError(t, try(works, "offer", "work"))

	invalid := &access.Policy{Rules: []access.Rule{{UIDs: []uint32{trainer}}}}
	require.ErrorIs(t, s.SetPolicy(invalid), endpoint.ErrConfiguration)
	stays.Publish(fixture.Model{Name: "m", Seed: 3})

	less := rule(trainer)
	less.Publish = nil
	idle := rule(worker1)
	idle.Offer = nil
	require.NoError(t, s.SetPolicy(&access.Policy{Rules: []access.Rule{less, idle}}))
	require.ErrorIs(t, stays.PublishError(fixture.Model{Name: "m", Seed: 4}), endpoint.ErrPermission)
	stays.Acquire(fixture.Acquisition{Name: "m", Key: "h"})
	require.NoError(t, try(stays, "list", ""))
	proctest.Eventually(t, fixture.WaitLimit, "the reader is refused", func() bool { return errors.Is(try(goes, "list", ""), endpoint.ErrPermission) })
	goes.Check("h", fixture.Model{Seed: 2})
	proctest.Eventually(t, fixture.WaitLimit, "the offer ended", func() bool {
		list, err := s.Endpoints(context.Background())
		require.NoError(t, err)
		return len(list) == 2
	})
	require.NoError(t, try(works, "list", ""), "the worker may still connect")

	require.NoError(t, s.SetPolicy(nil))
	require.ErrorIs(t, fixture.Start(t, fixture.AsUser(t, trainer)).DialError(fixture.Dialing{Socket: s.Socket(), UIDs: []uint32{0}}), endpoint.ErrPermission)
}

// The mode and the group of the socket file let in the users of the policy and, if one file can express it, no others.
func TestPolicySocketPermissions(t *testing.T) {
	t.Parallel()
	fixture.NeedsRoot(t)
	self := uint32(os.Getuid())
	all := []string{"*"}
	s := policyServer(t, &access.Policy{Rules: []access.Rule{{GIDs: []uint32{readers}, Acquire: all}}}, nil)
	permissions := func() string {
		info, err := os.Stat(s.Socket())
		require.NoError(t, err)
		return fmt.Sprintf("%o %d", info.Mode().Perm(), info.Sys().(*syscall.Stat_t).Gid)
	}
	require.Equal(t, "660 62000", permissions())
	visitor(t, s, asMember(t, reader, 100, readers))
	err := fixture.Start(t, fixture.AsUser(t, stranger)).DialError(fixture.Dialing{Socket: s.Socket(), UIDs: []uint32{self}})
	require.ErrorIs(t, err, endpoint.ErrPermission)
	require.ErrorIs(t, err, os.ErrPermission, "the kernel refuses it")

	require.NoError(t, s.SetPolicy(&access.Policy{Rules: []access.Rule{{UIDs: []uint32{reader}, Acquire: all}}}))
	require.Contains(t, permissions(), "666 ")
	require.NoError(t, s.SetPolicy(&access.Policy{Rules: []access.Rule{{UIDs: []uint32{self}, Acquire: all}}}))
	require.Contains(t, permissions(), "600 ")
	require.NoError(t, s.SetPolicy(&access.Policy{}))
	require.Contains(t, permissions(), "600 ")
}

// Processes of the owner's user have every right, unless the policy restricts them too. The server's own process is never
// restricted.
func TestPolicyOwner(t *testing.T) {
	t.Parallel()
	fixture.NeedsRoot(t)
	for _, restrict := range []bool{false, true} {
		s := policyServer(t, &access.Policy{RestrictOwner: restrict, Rules: []access.Rule{
			{UIDs: []uint32{0}, List: []string{"*"}},
		}}, nil)
		publishAs(t, s, "m")
		c := fixture.Client(t, s.Socket())
		if !restrict {
			c.Publish(fixture.Model{Name: "m", Seed: 2})
			continue
		}
		require.ErrorIs(t, c.PublishError(fixture.Model{Name: "m", Seed: 2}), endpoint.ErrPermission)
		require.ErrorIs(t, fixture.Failure(c, fixture.TakeAwayOp, "1"), endpoint.ErrPermission)
		own, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), Devices: []driver.Device{fixture.Device(t)}})
		require.NoError(t, err)
		require.NoError(t, own.Withdraw(context.Background(), "m"))
		require.NoError(t, own.Close())
	}
}

// Users without a right to connect can open the socket of a server that admits others. They cannot use up its connections.
func TestPolicyRefusedClientsTakeNoPlaces(t *testing.T) {
	t.Parallel()
	s := policyServer(t, &access.Policy{Rules: []access.Rule{{UIDs: []uint32{trainer}, List: []string{"*"}}}}, nil)
	flood := fixture.Start(t, fixture.AsUser(t, stranger))
	floodOp.Must(flood.Process, s.Socket())
	visitor(t, s, fixture.AsUser(t, trainer)) // and is served
	info, err := s.ServerInfo(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Stats.Clients)
}

// floodOp opens connections and sends nothing on them.
var floodOp = fixture.NewOp("flood", func(_ *fixture.Worker, _ context.Context, socket string) (fixture.None, error) {
	for range 200 {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			return fixture.None{}, err
		}
		if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
			return fixture.None{}, err
		}
	}
	return fixture.None{}, nil
})

func TestPolicyOptions(t *testing.T) {
	t.Parallel()
	policy := &access.Policy{}
	_, err := endpoint.NewServer(endpoint.ServerOptions{Local: true, Policy: policy, AllowUIDs: []uint32{1}})
	require.ErrorIs(t, err, endpoint.ErrConfiguration)
	require.ErrorContains(t, err, "a policy replaces AllowUIDs")
	policy.Rules = []access.Rule{{}}
	_, err = endpoint.NewServer(endpoint.ServerOptions{Local: true, Policy: policy})
	require.ErrorIs(t, err, access.ErrPolicy)
}

// A client that a new policy forbids is disconnected soon, whatever it waits for.
func TestNewPolicyEndsBusyClients(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	type none = struct{}
	for name, busy := range map[string]func(ctx context.Context, c *endpoint.Client) error{
		"call": func(ctx context.Context, c *endpoint.Client) error {
			_, err := endpoint.Call[int](ctx, c, "wait", none{})
			return err
		},
		"stream": func(ctx context.Context, c *endpoint.Client) error {
			for _, err := range endpoint.Stream[int](ctx, c, "stream", none{}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"wait for a task": func(ctx context.Context, c *endpoint.Client) error {
			k, err := c.Submit(ctx, "wait", none{})
			if err == nil {
				_, err = k.Wait(ctx)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := endpoint.NewRegistry()
			begun, hold := make(chan none, 1), make(chan none)
			defer close(hold)
			require.NoError(t, endpoint.Register(r, "wait", func(context.Context, none) (int, error) {
				begun <- none{}
				<-hold // also after ctx has ended
				return 1, nil
			}))
			require.NoError(t, endpoint.RegisterStream(r, "stream", func(context.Context, none) iter.Seq2[int, error] {
				return func(yield func(int, error) bool) {
					yield(1, nil)
					begun <- none{}
					<-hold
				}
			}))
			s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Policy: &access.Policy{Rules: []access.Rule{{UIDs: []uint32{uint32(os.Geteuid())}, Call: []string{"*"}, Info: true}}, RestrictOwner: true}})
			c := fixture.SocketClient(t, s)
			ended := make(chan error, 1)
			go func() { ended <- busy(t.Context(), c) }()
			<-begun
			require.NoError(t, s.SetPolicy(&access.Policy{Rules: []access.Rule{{UIDs: []uint32{4242}, List: []string{"*"}}}, RestrictOwner: true}))
			select {
			case err := <-ended:
				require.Error(t, err)
			case <-time.After(3 * time.Second):
				t.Fatal("a forbidden client is still served")
			}
		})
	}
}

// A policy whose permissions cannot be set is not in force.
func TestPolicyIsWholeOrNotAtAll(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	fixture.NeedsRoot(t)
	s := fixture.Serve(t, endpoint.ServerOptions{})
	c := fixture.SocketClient(t, s)
	moved := s.Socket() + ".moved"
	require.NoError(t, os.Rename(s.Socket(), moved)) // chmod fails
	err := s.SetPolicy(&access.Policy{Rules: []access.Rule{{UIDs: []uint32{4242}, List: []string{"*"}}}, RestrictOwner: true})
	if err == nil {
		t.Skip("the owner has bound its socket again in between")
	}
	_, err = c.List(context.Background())
	require.NoError(t, err, "the previous rights are in force")
	require.NoError(t, os.Rename(moved, s.Socket()))
}
