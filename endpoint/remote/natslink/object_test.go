package natslink_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// lostObjects is a store whose servers are lost. It behaves like the library: requests wait until the context ends, and
// a read without data returns nothing at the context's deadline.
type lostObjects struct {
	jetstream.ObjectStore
	body []byte
	gets int
}

// Get implements jetstream.ObjectStore. The first call is not answered, and the second returns only the beginning of
// the object.
func (s *lostObjects) Get(ctx context.Context, _ string, _ ...jetstream.GetObjectOpt) (jetstream.ObjectResult, error) {
	s.gets++
	if s.gets == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &lostObject{ctx: ctx, all: len(s.body), left: bytes.NewReader(s.body), lost: s.gets == 2}, nil
}

type lostObject struct {
	jetstream.ObjectResult
	ctx  context.Context
	all  int
	left *bytes.Reader
	lost bool
}

// Info implements jetstream.ObjectResult.
func (o *lostObject) Info() (*jetstream.ObjectInfo, error) {
	return &jetstream.ObjectInfo{Size: uint64(o.all)}, nil
}

// Read implements io.Reader.
func (o *lostObject) Read(p []byte) (int, error) {
	if !o.lost || o.left.Len() == o.all {
		return o.left.Read(p[:min(len(p), o.all/4)])
	}
	deadline, found := o.ctx.Deadline()
	if !found {
		return 0, context.DeadlineExceeded
	}
	time.Sleep(time.Until(deadline))
	return 0, nil
}

// Close implements io.Closer.
func (o *lostObject) Close() error { return nil }

// ReadObject repeats an attempt that gets no answer and one that gets a part of the object. It does so long before the
// caller's deadline.
func TestReadObjectAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := bytes.Repeat([]byte("0123456789"), 1000)
		store, begin := &lostObjects{body: body}, time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		fits := func(info *jetstream.ObjectInfo) error {
			require.EqualValues(t, len(body), info.Size)
			return nil
		}
		got, err := natslink.ReadObject(ctx, store, "o", fits)
		require.NoError(t, err)
		require.Equal(t, body, got)
		require.Equal(t, 3, store.gets)
		require.Less(t, time.Since(begin), time.Minute) // in the synctest bubble's time

		_, err = natslink.ReadObject(ctx, store, "o", func(*jetstream.ObjectInfo) error { return io.ErrShortBuffer })
		require.ErrorIs(t, err, io.ErrShortBuffer)

		store.gets = 0
		short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = natslink.ReadObject(short, store, "o", fits)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `"o"`)
	})
}

// ReadObject reads objects of a real server.
func TestReadObject(t *testing.T) {
	server, err := natslink.Start(natslink.ServerOptions{Store: t.TempDir()})
	require.NoError(t, err)
	defer server.Close()
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	store, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "b"})
	require.NoError(t, err)
	for name, size := range map[string]int{"empty": 0, "small": 7, "large": 3 << 20} {
		body := bytes.Repeat([]byte{7}, size)
		meta := jetstream.ObjectMeta{Name: name}
		_, err := natslink.PutObject(t.Context(), store, meta, func() io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) })
		require.NoError(t, err)
		got, err := natslink.ReadObject(context.Background(), store, name, func(*jetstream.ObjectInfo) error { return nil })
		require.NoError(t, err, name)
		require.True(t, bytes.Equal(body, got), name)
	}
	_, err = natslink.ReadObject(t.Context(), store, "none", func(*jetstream.ObjectInfo) error { return nil })
	require.ErrorIs(t, err, jetstream.ErrObjectNotFound)
	require.False(t, natslink.IsOutage(err))
	require.True(t, natslink.IsOutage(nats.ErrNoResponders))
	for code, want := range map[int]bool{10008: true, 10009: true, 10158: true, 10059: false} { // 10059: no such stream
		require.Equal(t, want, natslink.IsOutage(&jetstream.APIError{ErrorCode: jetstream.ErrorCode(code)}), code)
		require.Equal(t, want, natslink.IsOutage(&nats.APIError{ErrorCode: nats.ErrorCode(code)}), code)
	}
	require.True(t, natslink.IsOutage(jetstream.ErrNoStreamResponse))
}
