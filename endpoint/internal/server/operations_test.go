package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/session"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// testServer returns a server with endpoints. No client is connected: tests run operations for the server's own session.
func testServer(t *testing.T, endpoints ...*engine.Definition) *Server {
	log := slog.New(slog.DiscardHandler)
	registry := new(engine.Registry)
	for _, d := range endpoints {
		require.NoError(t, registry.Add(d))
	}
	s, err := New(Config{Log: log, Registry: registry, Limits: status.Limits{Objects: 10, Tasks: 10, Subscriptions: 10}})
	require.NoError(t, err)
	s.ID = "server"
	return s
}

// perform runs one operation without a connection. out receives the reply, which is sent or lost.
func (s *Server) perform(t *testing.T, op message.Op, in, out any, sent bool) error {
	return s.performAs(t, 1, op, in, out, sent)
}

// performAs is perform for a request with an id.
func (s *Server) performAs(t *testing.T, id uint64, op message.Op, in, out any, sent bool) error {
	body, err := message.MarshalPayload(in)
	require.NoError(t, err)
	r := &session.Request{Session: s.Sessions.Self(), Op: op, ID: id, Body: body}
	run, _, err := s.operations()[op].Prepare(r)
	if err != nil {
		return err
	}
	defer run.End()
	reply, err := run.Run(t.Context(), r)
	if err != nil {
		return err
	}
	defer reply.Done(sent)
	body, err = reply.AppendTo(nil)
	require.NoError(t, err)
	body = append(body, reply.Attachments().Tail...)
	require.NoError(t, message.UnmarshalPayload(body, out))
	return nil
}

func TestCallWithoutConnection(t *testing.T) {
	t.Parallel()
	d := numberEndpoint()
	s := testServer(t, d)
	var out message.Returned
	require.NoError(t, s.perform(t, message.OpCall, message.Call{Endpoint: "number"}, &out, true))
	require.Equal(t, message.RawMessage{1}, out.Value)
	require.EqualValues(t, 1, d.Calls.Load())
	require.ErrorIs(t, s.perform(t, message.OpCall, message.Call{Endpoint: "numbers"}, &out, true), status.ErrNoEndpoint)
	require.ErrorIs(t, s.perform(t, message.OpStream, message.Call{Endpoint: "number"}, &out, true), status.ErrInvalid)
	require.EqualValues(t, 1, d.Failures.Load())
}

// A call that panics returns an error, and the next call runs.
func TestCallPanics(t *testing.T) {
	t.Parallel()
	d := numberEndpoint()
	s := testServer(t, d)
	invoke := d.Invoke
	d.Invoke = func(context.Context, any) (any, error) { panic("why") }
	var out message.Returned
	require.ErrorContains(t, s.perform(t, message.OpCall, message.Call{Endpoint: "number"}, &out, true), `endpoint "number": `)
	d.Invoke = invoke
	require.NoError(t, s.perform(t, message.OpCall, message.Call{Endpoint: "number"}, &out, true))
}

// A client that did not receive its reference to an object has none.
func TestLostReplyReleasesObject(t *testing.T) {
	t.Parallel()
	d := numberEndpoint()
	d.Options.Managed = true
	s := testServer(t, d)
	self := s.Sessions.Self().ID
	for _, sent := range []bool{false, true} {
		var out message.Returned
		require.NoError(t, s.perform(t, message.OpCall, message.Call{Endpoint: "number"}, &out, sent))
		require.NotNil(t, out.Object)
		held := 0
		if sent {
			held = 1
		}
		require.Equal(t, held, s.Engine.Objects.HeldBy(self))
		require.Equal(t, held, s.Engine.Objects.Count())
	}
}

// A task is cancelled or dropped if its submitter did not receive the id.
func TestLostReplyDropsTask(t *testing.T) {
	t.Parallel()
	s := testServer(t, numberEndpoint())
	var info message.TaskInfo
	require.NoError(t, s.perform(t, message.OpSubmit, message.Call{Endpoint: "number"}, &info, false))
	require.Error(t, s.perform(t, message.OpTaskResult, message.Task{ID: info.ID}, new(message.Returned), true))
	require.NoError(t, s.perform(t, message.OpSubmit, message.Call{Endpoint: "number"}, &info, true))
	require.NoError(t, s.perform(t, message.OpTaskWait, message.Task{ID: info.ID}, &info, true))
	require.Equal(t, "completed", info.State)
	var out message.Returned
	require.NoError(t, s.perform(t, message.OpTaskResult, message.Task{ID: info.ID}, &out, true))
	require.Equal(t, message.RawMessage{1}, out.Value)
}

// A lost subscription is removed. A client watches objects once.
func TestObjectWatchWithoutConnection(t *testing.T) {
	t.Parallel()
	s := testServer(t)
	events := &s.Sessions.Self().Events
	require.NoError(t, s.perform(t, message.OpObjectWatch, message.WatchObjects{}, new(message.WatchingObjects), false))
	require.False(t, events.Has(1))
	require.NoError(t, s.perform(t, message.OpObjectWatch, message.WatchObjects{}, new(message.WatchingObjects), true))
	require.True(t, events.Has(1))
	require.ErrorIs(t, s.perform(t, message.OpObjectWatch, message.WatchObjects{}, new(message.WatchingObjects), true), status.ErrLimit)
	require.NoError(t, s.perform(t, message.OpUnwatch, message.Unwatch{Watch: 1}, new(message.Unwatched), true))
	require.NoError(t, s.perform(t, message.OpObjectWatch, message.WatchObjects{}, new(message.WatchingObjects), true))
}

// Offers are refused unless the server permits them.
func TestOfferRefusedWithoutPermission(t *testing.T) {
	t.Parallel()
	s := testServer(t)
	err := s.perform(t, message.OpOffer, message.Offer{Endpoints: []message.EndpointInfo{{Name: "x"}}}, new(message.Offering), true)
	require.ErrorContains(t, err, "does not accept offers")
}

func TestStreamCredit(t *testing.T) {
	t.Parallel()
	c := &credit{items: 2, more: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, c.take(ctx))
	require.NoError(t, c.take(ctx))
	taken := make(chan error)
	go func() { taken <- c.take(ctx) }()
	c.add(1)
	require.NoError(t, <-taken)
	go func() { taken <- c.take(ctx) }()
	cancel()
	require.ErrorIs(t, <-taken, context.Canceled)
	for range 100 {
		c.add(1<<64 - 1) // the sum must not overflow
	}
	require.NoError(t, c.take(context.Background()))
}

// The limits on clients are one table, equal to that of PROTOCOL.md.
func TestLimitsTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../wire/PROTOCOL.md")
	require.NoError(t, err)
	require.Contains(t, string(text), limitMarkdown(), "copy this table to PROTOCOL.md")
}

// Digests that the owner computes for a client are charged to the client.
func TestDigestsAreCharged(t *testing.T) {
	t.Parallel()
	in := message.Publish{Manifest: message.Manifest{NameLengths: make([]byte, 4*1000)}}
	without, err := newCharge(1, &in, nil)
	require.NoError(t, err)
	in.Digests = true
	with, err := newCharge(1, &in, nil)
	require.NoError(t, err)
	require.GreaterOrEqual(t, with.Manifests-without.Manifests, int64(32*1000), "each tensor has a digest")
}

// limitMarkdown returns the table of PROTOCOL.md.
func limitMarkdown() string {
	var b strings.Builder
	b.WriteString("| limit | of one client | of all | beyond it | `limit` |\n|---|---|---|---|---|\n")
	for _, r := range limitTable() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | `%s` |\n", r.what, r.one, r.all, r.beyond, r.name)
	}
	return b.String()
}
