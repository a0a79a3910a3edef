package server_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// latin1 is a text in Latin-1, as old names of files have it. It is not UTF-8.
const latin1 = "caf\xe9"

// escaped is latin1 as it is shown.
const escaped = `caf\xe9`

// namedDevice is a device whose driver reports an invalid name.
type namedDevice struct{ driver.Device }

func (d namedDevice) Info() driver.Info {
	info := d.Device.Info()
	info.Name = latin1
	return info
}

// textOwner is an owner whose own texts are invalid, with functions that return invalid texts.
type textOwner struct {
	server *endpoint.Server
	dev    driver.Device
	socket string
}

type textIn struct{ Text []byte }

func newTextOwner(t *testing.T) *textOwner {
	t.Helper()
	dev := fixture.Device(t)
	dir := filepath.Join(filepath.Dir(proctest.SocketPath(t)), latin1)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	o := &textOwner{dev: dev, socket: filepath.Join(dir, "s")}
	r := &endpoint.Registry{}
	fails := func(name string, err func(text string) error, opts ...endpoint.Option) {
		require.NoError(t, endpoint.Register(r, name, func(ctx context.Context, in textIn) (string, error) {
			task.Report(ctx, 1, 2, string(in.Text))
			return "", err(string(in.Text))
		}, opts...))
	}
	fails("error", func(text string) error { return errors.New(text) })
	fails("code", func(text string) error { return endpoint.NewError(text, text).WithData(text) })
	fails("stale", func(text string) error {
		return &endpoint.StaleError{ObjectID: text, ServerID: text, Detail: text, Reason: endpoint.StaleReason(text)}
	})
	fails("peer", func(text string) error {
		return &message.Error{Code: message.CodeInternal, Type: text, Message: text, Data: append([]byte{0x60 + byte(len(text))}, text...)}
	})
	fails("panic", func(text string) error { panic(text) })
	fails("task", func(text string) error { return errors.New(text) }, endpoint.AsTask())
	require.NoError(t, endpoint.Register(r, "value", func(_ context.Context, in textIn) (string, error) { return string(in.Text), nil }))
	require.NoError(t, endpoint.RegisterStream(r, "stream", func(_ context.Context, in textIn) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("", errors.New(string(in.Text))) }
	}))
	require.NoError(t, endpoint.Register(r, "object", func(_ context.Context, in struct{ Name, Text string }) (int, error) { return 1, nil },
		endpoint.Managed(), endpoint.CacheKey("ключ {Name}")))
	s, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: o.socket, Devices: []driver.Device{namedDevice{dev}}, Label: latin1, Registry: r, Offers: endpoint.AllowOffers,
	})
	require.NoError(t, err)
	o.server = s
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(context.Background()) }()
	t.Cleanup(func() { s.Close(); <-served })
	return o
}

func (o *textOwner) dial(t *testing.T, label string) *endpoint.Client {
	t.Helper()
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: o.socket, OverSocket: true, Label: label, Devices: []driver.Device{o.dev}})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func (o *textOwner) model(t *testing.T) *module.StateDict {
	t.Helper()
	sd, err := fixture.Synthetic(o.dev, fixture.Model{Name: "m"})
	require.NoError(t, err)
	return sd
}

// listings calls each operation that lists something for a client.
func listings(t *testing.T, c *endpoint.Client) {
	t.Helper()
	ctx := t.Context()
	_, err := c.Ping(ctx)
	require.NoError(t, err, "ping")
	models, err := c.List(ctx)
	require.NoError(t, err, "list")
	for _, m := range models {
		if len(m.Versions) > 0 {
			_, err = c.Info(ctx, m.Name)
			require.NoError(t, err, "info")
			_, err = c.Manifest(ctx, m.Name, 0)
			require.NoError(t, err, "manifest")
		}
	}
	info, err := c.ServerInfo(ctx)
	require.NoError(t, err, "server info")
	_, err = c.Endpoints(ctx)
	require.NoError(t, err, "endpoints")
	objects, err := c.Objects(ctx)
	require.NoError(t, err, "objects")
	for _, o := range objects {
		_, err = c.ObjectInfo(ctx, o.ID)
		require.NoError(t, err, "object info")
	}
	_, err = c.Tasks(ctx, endpoint.TaskFilter{})
	require.NoError(t, err, "tasks")
	requireValid(t, reflect.ValueOf(info))
	requireValid(t, reflect.ValueOf(models))
	requireValid(t, reflect.ValueOf(objects))
}

// requireValid fails if a text in v is not UTF-8.
func requireValid(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		require.True(t, utf8.ValidString(v.String()), "%q", v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			requireValid(t, v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			requireValid(t, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			requireValid(t, v.Field(i))
		}
	}
}

// Each text that enters an owner is refused with an error, or shown escaped. The lists of other clients stay readable.
func TestInvalidTextStaysWithItsSender(t *testing.T) {
	drivertest.Leaks(t)
	o := newTextOwner(t)
	observer := o.dial(t, "observer")
	sender := o.dial(t, latin1)
	cause := errors.New(latin1)
	registered := func(opts ...endpoint.Option) error {
		return endpoint.Register(&endpoint.Registry{}, "e", func(context.Context, struct{ Name string }) (int, error) { return 0, nil }, opts...)
	}
	call := func(name string) func(context.Context) error {
		return func(ctx context.Context) error { return sender.Call(ctx, name, textIn{[]byte(latin1)}, nil) }
	}
	for name, entry := range map[string]struct {
		do    func(ctx context.Context) error
		fails any    // the error that the sender gets; nil for none, a text if the error contains it
		shown string // in the owner's lists
	}{
		"owner's label, socket, device": {do: func(context.Context) error { return nil }, shown: escaped},
		"client's label":                {do: func(context.Context) error { return nil }, shown: escaped},
		"name of an endpoint": {do: func(context.Context) error {
			return endpoint.Register(&endpoint.Registry{}, latin1, func(context.Context, int) (int, error) { return 0, nil })
		}, fails: endpoint.ErrConfiguration},
		"cache key":     {do: func(context.Context) error { return registered(endpoint.CacheKey(latin1 + "{Name}")) }, fails: endpoint.ErrConfiguration},
		"serialized by": {do: func(context.Context) error { return registered(endpoint.SerializedBy(latin1)) }, fails: endpoint.ErrConfiguration},
		"tag of a field": {do: func(context.Context) error {
			return endpoint.Register(&endpoint.Registry{}, "e", func(context.Context, struct {
				A int `cbor:"caf\xe9"`
			}) (int, error) {
				return 0, nil
			})
		}, fails: endpoint.ErrConfiguration},
		"tag of a tensor": {do: func(context.Context) error { return registered(endpoint.ArgumentTensor(latin1)) }, fails: endpoint.ErrConfiguration},
		"owner publishes a name": {do: func(ctx context.Context) error {
			sd := o.model(t)
			defer sd.Close()
			_, err := o.server.Publish(ctx, latin1, sd, endpoint.PublishOptions{})
			return err
		}, fails: endpoint.ErrInvalid},
		"owner publishes from a file": {do: func(ctx context.Context) error {
			sd := o.model(t)
			defer sd.Close()
			_, err := o.server.Publish(ctx, "owner's", sd, endpoint.PublishOptions{Source: "/models/" + latin1})
			return err
		}, shown: "/models/" + escaped},
		"owner publishes content": {do: func(ctx context.Context) error {
			sd := o.model(t)
			defer sd.Close()
			_, err := o.server.Publish(ctx, "owner's", sd, endpoint.PublishOptions{SourceID: latin1})
			return err
		}, fails: endpoint.ErrInvalid},
		"owner loads a name": {do: func(context.Context) error { _, err := o.server.AnnounceLoad(latin1, ""); return err }, fails: endpoint.ErrInvalid},
		"owner loads a file": {do: func(context.Context) error { _, err := o.server.AnnounceLoad("loaded", "/loads/"+latin1); return err }, shown: "/loads/" + escaped},
		"load fails": {do: func(context.Context) error {
			l, err := o.server.AnnounceLoad("failed", "")
			l.Fail(cause)
			return err
		}, shown: escaped},
		"client publishes a name": {do: func(ctx context.Context) error {
			sd := o.model(t)
			defer sd.Close()
			_, err := sender.Publish(ctx, latin1, sd, endpoint.PublishOptions{})
			return err
		}, fails: endpoint.ErrInvalid},
		"client publishes from a file": {do: func(ctx context.Context) error {
			sd := o.model(t)
			defer sd.Close()
			_, err := sender.Publish(ctx, "client's", sd, endpoint.PublishOptions{Source: "/data/" + latin1})
			return err
		}, shown: "/data/" + escaped},
		"acquire": {do: func(ctx context.Context) error {
			_, err := sender.Acquire(ctx, latin1, endpoint.AcquireOptions{})
			return err
		}, fails: endpoint.ErrInvalid},
		"info":       {do: func(ctx context.Context) error { _, err := sender.Info(ctx, latin1); return err }, fails: endpoint.ErrInvalid},
		"withdraw":   {do: func(ctx context.Context) error { return sender.Withdraw(ctx, latin1) }, fails: endpoint.ErrInvalid},
		"rollback":   {do: func(ctx context.Context) error { _, err := sender.Rollback(ctx, latin1, 0); return err }, fails: endpoint.ErrInvalid},
		"watch":      {do: func(ctx context.Context) error { _, err := sender.Watch(ctx, latin1); return err }, fails: endpoint.ErrInvalid},
		"call":       {do: func(ctx context.Context) error { return sender.Call(ctx, latin1, nil, nil) }, fails: endpoint.ErrInvalid},
		"task":       {do: func(ctx context.Context) error { _, err := sender.Task(latin1).Info(ctx); return err }, fails: endpoint.ErrInvalid},
		"object":     {do: func(ctx context.Context) error { _, err := sender.ObjectInfo(ctx, latin1); return err }, fails: endpoint.ErrInvalid},
		"objects of": {do: func(ctx context.Context) error { _, err := sender.Objects(ctx, latin1); return err }, fails: endpoint.ErrInvalid},
		"argument":   {do: func(ctx context.Context) error { return sender.Call(ctx, "value", latin1, nil) }, fails: endpoint.ErrCapability},
		"key of an argument": {do: func(ctx context.Context) error {
			return sender.Call(ctx, "value", map[string]int{latin1: 1}, nil)
		}, fails: endpoint.ErrCapability},
		"argument of a key": {do: func(ctx context.Context) error {
			return sender.Call(ctx, "object", struct{ Name, Text string }{latin1, ""}, nil)
		}, fails: endpoint.ErrCapability},
		"key in other letters": {do: func(ctx context.Context) error {
			ref, err := endpoint.CallManaged[int](ctx, sender, "object", struct{ Name, Text string }{"имя", ""})
			if err == nil {
				t.Cleanup(func() { ref.Close() })
			}
			return err
		}, shown: "ключ"},
		"result":                {do: call("value"), fails: endpoint.ErrCapability},
		"error":                 {do: call("error"), fails: escaped},
		"code of an error":      {do: call("code"), fails: escaped},
		"stale object":          {do: call("stale"), fails: escaped},
		"error of another peer": {do: call("peer"), fails: escaped},
		"panic":                 {do: call("panic"), fails: `caf`},
		"error of a stream": {do: func(ctx context.Context) error {
			for _, err := range endpoint.Stream[string](ctx, sender, "stream", textIn{[]byte(latin1)}) {
				return err
			}
			return nil
		}, fails: escaped},
		"note and error of a task": {do: func(ctx context.Context) error {
			k, err := sender.Submit(ctx, "task", textIn{[]byte(latin1)})
			if err == nil {
				_, err = k.Wait(ctx)
			}
			return err
		}, shown: escaped},
		"cause of a cancellation": {do: func(ctx context.Context) error {
			ctx, cancel := context.WithCancelCause(ctx)
			k, err := sender.Submit(ctx, "task", textIn{[]byte(latin1)})
			cancel(cause)
			_, _ = k.Wait(ctx)
			return err
		}},
		"worker's endpoint": {do: func(ctx context.Context) error {
			r := &endpoint.Registry{}
			require.NoError(t, endpoint.Register(r, "worker's", func(_ context.Context, in textIn) (string, error) {
				return string(in.Text), errors.New(string(in.Text))
			}))
			offer, err := sender.Offer(ctx, r, endpoint.OfferOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { offer.Close() })
			return observer.Call(ctx, "worker's", textIn{[]byte(latin1)}, nil)
		}, fails: escaped, shown: "worker's"},
	} {
		t.Run(name, func(t *testing.T) {
			err := entry.do(t.Context())
			switch want := entry.fails.(type) {
			case nil:
				require.NoError(t, err)
			case error:
				require.ErrorIs(t, err, want)
			case string:
				require.ErrorContains(t, err, want)
			}
			if err != nil {
				require.True(t, utf8.ValidString(err.Error()), "%q", err)
			}
			listings(t, observer)
			listings(t, sender)
			if entry.shown != "" {
				require.Contains(t, everything(t, observer), entry.shown)
			}
		})
	}
}

// everything returns all texts of all lists.
func everything(t *testing.T, c *endpoint.Client) string {
	t.Helper()
	var b bytes.Buffer
	var add func(v reflect.Value)
	add = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			b.WriteString(v.String() + "\n")
		case reflect.Pointer, reflect.Interface:
			if !v.IsNil() {
				if err, ok := v.Interface().(error); ok {
					b.WriteString(err.Error() + "\n")
				}
				add(v.Elem())
			}
		case reflect.Slice:
			for i := range v.Len() {
				add(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					add(v.Field(i))
				}
			}
		}
	}
	models, err := c.List(t.Context())
	require.NoError(t, err)
	info, err := c.ServerInfo(t.Context())
	require.NoError(t, err)
	endpoints, err := c.Endpoints(t.Context())
	require.NoError(t, err)
	objects, err := c.Objects(t.Context())
	require.NoError(t, err)
	tasks, err := c.Tasks(t.Context(), endpoint.TaskFilter{})
	require.NoError(t, err)
	for _, list := range []any{models, info, endpoints, objects, tasks} {
		add(reflect.ValueOf(list))
	}
	return b.String()
}

// requests holds an empty body of each operation that has texts.
var requests = map[message.Op]any{
	message.OpAcquire: message.Acquire{}, message.OpPublish: message.Publish{}, message.OpWithdraw: message.Withdraw{}, message.OpList: message.List{},
	message.OpInfo: message.Info{}, message.OpWatch: message.Watch{}, message.OpDigests: message.Digests{}, message.OpRollback: message.Rollback{},
	message.OpCall: message.Call{}, message.OpOffer: message.Offer{}, message.OpAnswer: message.Answer{},
	message.OpSubmit: message.Call{}, message.OpStream: message.Call{}, message.OpInvalidateCall: message.Call{},
	message.OpTask: message.Task{}, message.OpTaskWait: message.Task{}, message.OpTaskResult: message.Task{}, message.OpTaskCancel: message.Task{},
	message.OpTasks: message.Tasks{}, message.OpTaskWatch: message.WatchTasks{}, message.OpInvalidateEndpoint: message.InvalidateEndpoint{},
	message.OpObjectInfo: message.Object{}, message.OpObjectRelease: message.ReleaseObjects{}, message.OpObjectRefer: message.Object{},
	message.OpObjects: message.Objects{}, message.OpObjectDestroy: message.Object{},
}

// marker is replaced by a text of the same length that is not UTF-8.
var marker, invalid = []byte("qqqq"), []byte("q\xff\xc3\x28")

// fillTexts returns one copy of v for each text field below it, in which this text is the marker.
func fillTexts(v reflect.Value, depth int) (list []reflect.Value) {
	with := func(set func(copy reflect.Value)) {
		copy := reflect.New(v.Type()).Elem()
		copy.Set(v)
		set(copy)
		list = append(list, copy)
	}
	switch v.Kind() {
	case reflect.String:
		with(func(c reflect.Value) { c.SetString(string(marker)) })
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[message.RawMessage]() {
			raw := append([]byte{0x64}, marker...)
			with(func(c reflect.Value) { c.SetBytes(raw) })
			return list
		}
		if depth < 4 && v.Type().Elem().Kind() != reflect.Uint8 {
			for _, item := range fillTexts(reflect.New(v.Type().Elem()).Elem(), depth+1) {
				with(func(c reflect.Value) { c.Set(reflect.Append(c, item)) })
			}
		}
	case reflect.Pointer:
		if depth < 4 {
			for _, item := range fillTexts(reflect.New(v.Type().Elem()).Elem(), depth+1) {
				with(func(c reflect.Value) { p := reflect.New(item.Type()); p.Elem().Set(item); c.Set(p) })
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				for _, item := range fillTexts(v.Field(i), depth) {
					with(func(c reflect.Value) { c.Field(i).Set(item) })
				}
			}
		}
	}
	return list
}

// A peer that sends a text that is not UTF-8, in any field of any request, is refused. Nothing of it is listed.
func TestInvalidTextOfPeerIsRefused(t *testing.T) {
	drivertest.Leaks(t)
	o := newTextOwner(t)
	observer := o.dial(t, "observer")
	sent := 0
	for op, body := range requests {
		for _, filled := range fillTexts(reflect.ValueOf(body), 0) {
			encoded, err := message.MarshalPayload(filled.Interface())
			require.NoError(t, err)
			if !bytes.Contains(encoded, marker) {
				continue // not sent
			}
			encoded = bytes.ReplaceAll(encoded, marker, invalid)
			request := message.AppendRequest(nil, message.Request{Op: op, Body: encoded})
			peer := fixture.PolitePeer(t, o.socket)
			require.NoError(t, peer.Conn.Send(wire.KindRequest, 1, request))
			frame, err := peer.Conn.Receive()
			require.NoError(t, err)
			require.Equal(t, wire.KindError, frame.Kind, "%s: %+v", op, filled)
			var e message.Error
			require.NoError(t, message.Unmarshal(frame.Body, &e))
			require.NotEqual(t, message.CodeInternal, e.Code, "%s: %s", op, e.Message)
			peer.Conn.Close()
			sent++
		}
	}
	require.Greater(t, sent, 60)
	for _, hello := range fillTexts(reflect.ValueOf(message.Hello{Protocol: 1, Oldest: 1}), 0) {
		encoded, err := message.Marshal(hello.Interface())
		require.NoError(t, err)
		peer := fixture.RawPeer(t, o.socket)
		require.NoError(t, peer.Conn.Send(wire.KindHello, 0, bytes.ReplaceAll(encoded, marker, invalid)))
		frame, err := peer.Conn.Receive()
		require.NoError(t, err)
		require.Equal(t, wire.KindError, frame.Kind)
		peer.Conn.Close()
	}
	for _, kind := range []wire.Kind{wire.KindCancel, wire.KindGoodbye} {
		peer := fixture.PolitePeer(t, o.socket)
		require.NoError(t, peer.Conn.Send(kind, 0, append([]byte{0xa1, 1, 0x64}, invalid...)))
		listings(t, observer)
		peer.Conn.Close()
	}
	listings(t, observer)
	require.NotContains(t, everything(t, observer), "q\\x")
	require.NotContains(t, everything(t, observer), "q?")
}
