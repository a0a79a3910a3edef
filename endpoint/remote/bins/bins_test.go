package bins_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// nextEvent waits for the next event.
func nextEvent(ctx context.Context, l *bins.Listener) (bins.Event, error) {
	for event, err := range l.Events(ctx) {
		return event, err
	}
	panic("the events end with an error")
}

func start(t *testing.T, opts natslink.ServerOptions) (*natslink.Server, *nats.Conn) {
	t.Helper()
	if opts.Store == "" {
		opts.Store = t.TempDir()
	}
	server, err := natslink.Start(opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return server, conn
}

func open(t *testing.T, conn *nats.Conn, opts bins.Options) *bins.Store {
	t.Helper()
	if opts.Namespace == "" {
		opts.Namespace = "test"
	}
	s, err := bins.Open(t.Context(), conn, opts)
	require.NoError(t, err)
	return s
}

func text(body string) bins.Value { return bins.Value{Type: "text/plain", Body: []byte(body)} }

func bodies(items []bins.Item) (texts []string) {
	for _, item := range items {
		texts = append(texts, string(item.Body))
	}
	return texts
}

func TestStoreVerbs(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{}), t.Context()

	_, err := s.Peek(ctx, "a")
	require.ErrorIs(t, err, bins.ErrNotFound)
	_, err = s.Take(ctx, "a", bins.TakeOptions{})
	require.ErrorIs(t, err, bins.ErrNotFound)
	require.NoError(t, s.Delete(ctx, "a"))

	_, err = s.Append(ctx, "a", text("1"))
	require.NoError(t, err)
	_, err = s.Append(ctx, "a", bins.Value{Body: []byte("2"), Meta: map[string]string{"ключ": "line\nbreak"}})
	require.NoError(t, err)
	items, err := s.Peek(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, []string{"1", "2"}, bodies(items))
	require.Equal(t, "text/plain", items[0].Type)
	require.Equal(t, map[string]string{"ключ": "line\nbreak"}, items[1].Meta)
	require.WithinDuration(t, time.Now(), items[1].Time, time.Minute)

	_, err = s.Put(ctx, "a", text("3"))
	require.NoError(t, err)
	_, err = s.Append(ctx, "a", text("4"))
	require.NoError(t, err)
	_, err = s.Put(ctx, "b.c", text(""))
	require.NoError(t, err)
	counts, err := s.List(ctx, ">")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"a": 2, "b.c": 1}, counts)
	counts, err = s.List(ctx, "b.*")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"b.c": 1}, counts)

	items, err = s.Take(ctx, "a", bins.TakeOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"3", "4"}, bodies(items))
	counts, err = s.List(ctx, ">")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"b.c": 1}, counts, "a taken bin is gone at once")

	_, err = s.Append(ctx, "a", text("5"))
	require.NoError(t, err)
	n, err := s.Count(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, 1, n, "the message that emptied the bin does not count")
	items, err = s.Peek(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, []string{"5"}, bodies(items))

	require.NoError(t, s.Delete(ctx, "a"))
	n, err = s.Count(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestStoreNames(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{}), t.Context()
	good := []string{"a b", "ü.日本", "*", ">", "a|b%20", strings.Repeat("x", 200), "\x00\n"}
	for _, name := range good {
		_, err := s.Put(ctx, name, text(name))
		require.NoError(t, err, "%q", name)
	}
	counts, err := s.List(ctx, ">")
	require.NoError(t, err)
	require.Len(t, counts, len(good))
	for _, name := range good {
		require.Equal(t, 1, counts[name], "%q", name)
		items, err := s.Peek(ctx, name)
		require.NoError(t, err)
		require.Equal(t, name, string(items[0].Body))
	}
	for _, name := range []string{"", ".", "a.", ".a", "a..b", strings.Repeat("x", 201)} {
		_, err := s.Put(ctx, name, text(""))
		require.ErrorIs(t, err, bins.ErrName, "%q", name)
	}
}

func TestStoreLargeBodies(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{Inline: 1000, MaxItemBytes: 8 << 20}), t.Context()
	large := make([]byte, 5<<20+17)
	for i := range large {
		large[i] = byte(rand.Int())
	}
	for _, size := range []int{0, 999, 1000, 1001, len(large)} {
		_, err := s.Append(ctx, "a", bins.Value{Body: large[:size]})
		require.NoError(t, err)
	}
	items, err := s.Peek(ctx, "a")
	require.NoError(t, err)
	require.Len(t, items, 5)
	require.True(t, bytes.Equal(large, items[4].Body))
	items, err = s.Take(ctx, "a", bins.TakeOptions{})
	require.NoError(t, err)
	require.True(t, bytes.Equal(large[:1001], items[3].Body))
	require.NoError(t, s.Drain(longContext(t)))
	require.Empty(t, objects(t, conn), "a taken body is removed")

	_, err = s.Append(ctx, "a", bins.Value{Body: make([]byte, 8<<20+1)})
	require.ErrorIs(t, err, bins.ErrTooLarge)
}

func objects(t *testing.T, conn *nats.Conn) []string {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	store, err := js.ObjectStore(t.Context(), "BINS_test")
	require.NoError(t, err)
	list, err := store.List(t.Context())
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil
	}
	require.NoError(t, err)
	var names []string
	for _, o := range list {
		names = append(names, o.Name)
	}
	return names
}

func TestStoreSweep(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{Inline: 10}), t.Context()
	for i := range 3 {
		_, err := s.Put(ctx, "a", bins.Value{Body: bytes.Repeat([]byte{byte(i)}, 100)})
		require.NoError(t, err)
	}
	require.Len(t, objects(t, conn), 3, "bodies of replaced items stay for a while, because they may have readers")
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.Publish(ctx, "$O.BINS_test.C.ORPHAN", []byte("of a writer that was killed"))
	require.NoError(t, err)

	removed, err := s.Sweep(ctx, time.Hour)
	require.NoError(t, err)
	require.Zero(t, removed)
	removed, err = s.Sweep(ctx, 0)
	require.NoError(t, err)
	require.Equal(t, 2, removed)
	require.Len(t, objects(t, conn), 1)
	items, err := s.Peek(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, byte(2), items[0].Body[0])
	stream, err := js.Stream(ctx, "OBJ_BINS_test")
	require.NoError(t, err)
	_, err = stream.GetLastMsgForSubject(ctx, "$O.BINS_test.C.ORPHAN")
	require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
}

func TestStoreConditions(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{}), t.Context()
	first, err := s.Put(ctx, "a", text("1"), bins.IfLast(0))
	require.NoError(t, err)
	_, err = s.Put(ctx, "a", text("2"), bins.IfLast(0))
	require.ErrorIs(t, err, bins.ErrConflict)
	_, err = s.Put(ctx, "a", text("2"), bins.IfLast(first))
	require.NoError(t, err)

	one, err := s.Append(ctx, "b", text("x"), bins.WithID("same"))
	require.NoError(t, err)
	two, err := s.Append(ctx, "b", text("x"), bins.WithID("same"))
	require.NoError(t, err)
	require.Equal(t, one, two)
	n, err := s.Count(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestStoreFull(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{MaxBytes: 1 << 20}), t.Context()
	body := make([]byte, 100<<10)
	var err error
	stored := 0
	for range 20 {
		if _, err = s.Append(ctx, "a", bins.Value{Body: body}); err != nil {
			break
		}
		stored++
	}
	require.ErrorIs(t, err, bins.ErrFull)
	require.NotZero(t, stored)
	_, err = s.Take(ctx, "a", bins.TakeOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Drain(longContext(t)))
	_, err = s.Append(ctx, "a", bins.Value{Body: body})
	require.NoError(t, err, "a take frees space")
}

func TestTakeRace(t *testing.T) {
	server, _ := start(t, natslink.ServerOptions{})
	const racers, total = 8, 200
	var mu sync.Mutex
	got := map[string]int{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	connect := func() *bins.Store {
		conn, err := server.Connect()
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		return open(t, conn, bins.Options{})
	}
	var takers sync.WaitGroup
	for range racers {
		s := connect()
		takers.Go(func() {
			for {
				items, err := s.Take(ctx, "a", bins.TakeOptions{Wait: true})
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
						cancel()
					}
					return
				}
				mu.Lock()
				for _, item := range items {
					got[string(item.Body)]++
				}
				if len(got) == total {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	s := connect()
	for i := range total {
		_, err := s.Append(context.Background(), "a", text(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	takers.Wait()
	require.Len(t, got, total)
	for item, n := range got {
		require.Equal(t, 1, n, item)
	}
	n, err := s.Count(context.Background(), "a")
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestListenerEvents(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{}), t.Context()
	for range 3 {
		_, err := s.Append(ctx, "x.a", text("before"))
		require.NoError(t, err)
	}
	l, err := s.Listen(ctx, "x.*")
	require.NoError(t, err)
	defer l.Close()
	steps := []struct {
		bin, op string
		items   int
		do      func() error
	}{
		{"x.a", "append", 4, func() error { _, err := s.Append(ctx, "x.a", text("")); return err }},
		{"x.b", "put", 1, func() error { _, err := s.Put(ctx, "x.b", text("")); return err }},
		{"x.a", "append", 5, func() error { _, err := s.Append(ctx, "x.a", text("")); return err }},
		{"x.a", "take", 0, func() error { _, err := s.Take(ctx, "x.a", bins.TakeOptions{}); return err }},
		{"x.a", "append", 1, func() error { _, err := s.Append(ctx, "x.a", text("")); return err }},
		{"x.b", "delete", 0, func() error { return s.Delete(ctx, "x.b") }},
	}
	_, err = s.Put(ctx, "other", text("not heard"))
	require.NoError(t, err)
	last := uint64(0)
	for _, step := range steps {
		require.NoError(t, step.do())
		_, err := s.Peek(ctx, "x.a")
		require.True(t, err == nil || errors.Is(err, bins.ErrNotFound))
		event, err := nextEvent(ctx, l)
		require.NoError(t, err)
		require.Equal(t, bins.Event{Bin: step.bin, Op: step.op, Items: step.items, Sequence: event.Sequence}, event)
		require.Greater(t, event.Sequence, last)
		last = event.Sequence
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = nextEvent(short, l)
	require.ErrorIs(t, err, context.DeadlineExceeded, "Delete of an empty bin and Peek cause no event")
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err = nextEvent(ctx, l)
	require.ErrorIs(t, err, bins.ErrClosed)
}

func TestStoreForeignMessages(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{}), t.Context()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	lies := []nats.Header{
		{},
		{"Bin-Op": {"put"}},
		{"Bin-Op": {"put"}, "Bin-Size": {"-1"}},
		{"Bin-Op": {"put"}, "Bin-Size": {"99999999999999"}},
		{"Bin-Op": {"put"}, "Bin-Size": {"7"}},
		{"Bin-Op": {"put"}, "Bin-Size": {"1"}, "Bin-Meta": {"{"}},
		{"Bin-Op": {"put"}, "Bin-Size": {"1"}, "Bin-Object": {"gone"}, "Bin-Sha256": {"12"}},
		{"Bin-Op": {"put"}, "Bin-Size": {"1"}, "Bin-Object": {"gone"}, "Bin-Sha256": {strings.Repeat("ab", 32)}},
	}
	for i, header := range lies {
		name := fmt.Sprint("lie", i)
		_, err := js.PublishMsg(ctx, &nats.Msg{Subject: "bin.test." + name, Header: header, Data: []byte("x")})
		require.NoError(t, err)
		_, err = s.Peek(ctx, name)
		require.Error(t, err, "%v", header)
		_, err = s.Take(ctx, name, bins.TakeOptions{})
		require.ErrorIs(t, err, bins.ErrCorrupt, "%v", header)
		n, err := s.Count(ctx, name)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = s.Append(ctx, name, text("whole"))
		require.NoError(t, err)
		require.NoError(t, s.Delete(ctx, name), "%v", header)
		_, err = s.Take(ctx, name, bins.TakeOptions{})
		require.ErrorIs(t, err, bins.ErrNotFound, "%v", header)
	}
	_, err = js.Publish(ctx, "bin.test.zzz.%GG", []byte("x"))
	require.NoError(t, err)
	_, err = s.List(ctx, ">")
	require.NoError(t, err)
}

func TestOpenRefuses(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	for _, opts := range []bins.Options{{}, {Namespace: "a.b"}, {Namespace: "*"}, {Namespace: "a", Inline: 2 << 20}} {
		_, err := bins.Open(t.Context(), conn, opts)
		require.Error(t, err, "%+v", opts)
	}
}
